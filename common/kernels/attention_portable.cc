#include "common/kernels/attention_loops.h"

namespace psring::cpu {

const AttentionKernels kPortableAttention = {Forward<Product<4, 4>>, Backward<Product<4, 4>>};

size_t AttentionScratch(int queries, int keys, int head_size) {
  return (size_t{3} * Padded(queries) + size_t{5} * Padded(keys)) * Padded(head_size) +
         size_t{2} * kBlock * (kKeyBlock + Padded(head_size));
}

}  // namespace psring::cpu
