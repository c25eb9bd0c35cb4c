// Checks that every implementation of Ops shares.
#pragma once

#include "common/ops/elementwise.h"
#include "common/ops/ops.h"

namespace psring {

// PSRING_CHECK that the spans of a layer fit its shape.
void CheckForward(const LinearShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan y);
void CheckForward(const ConvShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan y);
void CheckBackwardInput(const LinearShape& shape, ConstSpan weight, ConstSpan saved, ConstSpan dy,
                        ConstSpan dx, ConstSpan dbias);
void CheckBackwardInput(const ConvShape& shape, ConstSpan weight, ConstSpan saved, ConstSpan dy, ConstSpan dx,
                        ConstSpan dbias);
void CheckBackwardWeight(const LinearShape& shape, ConstSpan x, ConstSpan dy, ConstSpan dweight);
void CheckBackwardWeight(const ConvShape& shape, ConstSpan x, ConstSpan dy, ConstSpan dweight);
// The pooled side has a quarter of the elements.
void CheckPool(const PoolShape& shape, size_t pooled, size_t full);

// The counts of Ops::Apply.
void CheckStep(const OptimizerStep& step, Span weights, ConstSpan gradient, const std::array<Span, 2>& slots);

elementwise::AdamRates RatesOf(const AdamStep& step);

}  // namespace psring
