#include "common/kernels/attention.h"

namespace psring::cpu {

int SupportedAttentionKernels(const AttentionKernels* (&kernels)[3]) {
  kernels[0] = &kPortableAttention;
  return 1;
}

}  // namespace psring::cpu
