#include "common/kernels/attention_loops.h"

namespace psring::cpu {

const AttentionKernels kAvx2Attention = {Forward<Product<8, 4>>, Backward<Product<8, 4>>};

}  // namespace psring::cpu
