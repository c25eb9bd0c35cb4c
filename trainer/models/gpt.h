// GPT-2 (Radford et al. 2019) for any size, as nanoGPT builds it; weights of attention are not dropped.
#pragma once

#include "trainer/models/model.h"

namespace psring {

// All sizes are given. Tensors have nanoGPT's names and shapes. InvalidArgument: the width is not a multiple
// of the heads, or the samples are not texts of this context.
// `dropout`: the probability of dropping elements of the embedding's sum and of what each block adds.
ModelRow::Make Gpt(const ModelSize& size, double dropout);

}  // namespace psring
