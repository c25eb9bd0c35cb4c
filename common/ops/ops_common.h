// Checks that every implementation of Ops shares.
#pragma once

#include "common/ops/elementwise.h"
#include "common/ops/ops.h"

namespace psring {

// PSRING_CHECKs that the spans of a layer fit its shape. Backward also needs CheckForward, with dbias as
// bias.
void CheckForward(const LinearShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan y);
void CheckForward(const ConvShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan y);
void CheckBackward(ConstSpan x, ConstSpan weight, ConstSpan y, ConstSpan dy, ConstSpan dx, ConstSpan dweight);
// The pooled side has a quarter of the elements.
void CheckPool(const PoolShape& shape, size_t pooled, size_t full);

// The counts of Ops::Apply.
void CheckStep(const OptimizerStep& step, Span weights, ConstSpan gradient, const std::array<Span, 2>& slots);

elementwise::AdamRates RatesOf(const AdamStep& step);

}  // namespace psring
