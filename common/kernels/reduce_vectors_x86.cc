#include "common/kernels/reduce_vectors.h"

namespace psring::cpu {

const VectorKernels* BestVectorKernels() {
  if (__builtin_cpu_supports("avx512f")) return &kAvx512Kernels;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return &kAvx2Kernels;
  return nullptr;
}

}  // namespace psring::cpu
