#include "common/kernels/attention_loops.h"

namespace psring::cpu {

const AttentionKernels kAvx512Attention = {Forward<Product<16, 8>>, Backward<Product<16, 8>>};

}  // namespace psring::cpu
