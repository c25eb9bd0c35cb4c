// GPT-2 (Radford et al. 2019) for any size, as nanoGPT builds it, without dropout.
#pragma once

#include "trainer/models/model.h"

namespace psring {

// All sizes are given. Tensors have nanoGPT's names and shapes. InvalidArgument: the width is not a multiple
// of the heads, or the samples are not texts of this context.
ModelRow::Make Gpt(const ModelSize& size);

}  // namespace psring
