// The ops implemented by definition, with sums in double precision: what tests compare the fast ones with.
#pragma once

#include <memory>

#include "common/ops/ops.h"

namespace psring {

std::unique_ptr<Ops> MakeReferenceOps();

// Its families other than products; for float32 activations.
void AddReferenceLayers(OpFamilies& families);

// GELU and its derivative.
double ReferenceGelu(double u);
double ReferenceGeluSlope(double u);

}  // namespace psring
