// Models that look rows up in tables.
#pragma once

#include "trainer/models/model.h"

namespace psring {

// DLRM (Naumov et al. 2019). The numbers of a sample pass an MLP, each table's rows are added up, and the
// products of all pairs of these vectors, with the MLP's output, pass another MLP. `size.width`: of rows.
ModelRow::Make Dlrm(const ModelSize& size, double);

// Skip-grams with negative sampling (Mikolov et al. 2013): the product of a word's vector and another vector
// of each target is the logit of their being near.
ModelRow::Make SkipGram(const ModelSize& size, double);

}  // namespace psring
