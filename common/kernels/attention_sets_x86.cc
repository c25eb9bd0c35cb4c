#include "common/kernels/attention.h"

namespace psring::cpu {

int SupportedAttentionKernels(const AttentionKernels* (&kernels)[3]) {
  int count = 0;
  kernels[count++] = &kPortableAttention;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) kernels[count++] = &kAvx2Attention;
  if (__builtin_cpu_supports("avx512f")) kernels[count++] = &kAvx512Attention;
  return count;
}

}  // namespace psring::cpu
