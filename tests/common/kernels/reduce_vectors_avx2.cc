// Replaces reduce_vectors_x86.cc, so that the AVX2 kernels are tested on processors with AVX-512, too.
#include "common/kernels/reduce_vectors.h"

namespace psring::cpu {

const VectorKernels* BestVectorKernels() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") ? &kAvx2Kernels : nullptr;
}

}  // namespace psring::cpu
