#include "common/kernels/attention_loops.h"

namespace psring::cpu {

const AttentionKernels kPortableAttention = {Forward<Product<4, 4>>, Backward<Product<4, 4>>};

size_t AttentionScratch(int context, int head_size) {
  return size_t{8} * Padded(context) * Padded(head_size) +
         size_t{2} * kBlock * (kKeyBlock + Padded(head_size));
}

}  // namespace psring::cpu
