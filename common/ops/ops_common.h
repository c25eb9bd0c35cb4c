// Checks that every implementation of Ops shares.
#pragma once

#include <initializer_list>

#include "absl/status/status.h"
#include "common/ops/elementwise.h"
#include "common/ops/ops.h"

namespace psring {

// PSRING_CHECK that the spans of a layer fit its shape.
void CheckForward(const LinearShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan residual,
                  ConstSpan y, ConstSpan saved);
void CheckForward(const ConvShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan y);
void CheckBackwardInput(const LinearShape& shape, ConstSpan weight, ConstSpan saved, ConstSpan dy,
                        ConstSpan dx, ConstSpan dbias);
void CheckBackwardInput(const ConvShape& shape, ConstSpan weight, ConstSpan saved, ConstSpan dy, ConstSpan dx,
                        ConstSpan dbias);
void CheckBackwardWeight(const LinearShape& shape, ConstSpan x, ConstSpan dy, ConstSpan dweight);
void CheckBackwardWeight(const ConvShape& shape, ConstSpan x, ConstSpan dy, ConstSpan dweight);
void CheckLayerNorm(const LayerNormShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan y,
                    ConstSpan statistics);
void CheckAttention(const AttentionShape& shape, ConstSpan qkv, ConstSpan y, ConstSpan log_sum_exp);
void CheckEmbedding(const EmbeddingShape& shape, ConstSpan table, ConstSpan positions, ConstSpan y);
void CheckLoss(int batch, int classes, ConstSpan logits, ConstSpan dlogits);

// That all spans that have data are of `type`.
void CheckTypes(DType type, std::initializer_list<ConstSpan> spans);

// The errors of indices and labels that are out of range.
absl::Status IndexOutside(const EmbeddingShape& shape, int position, int32_t index);
absl::Status LabelOutside(int classes, int row, int32_t label);

// `x` and `y`: activations of all rows.
void CheckBatchNorm(const BatchNormShape& shape, ConstSpan x, ConstSpan y, ConstSpan weight,
                    ConstSpan statistics);
void CheckAverage(const PoolShape& shape, ConstSpan full, ConstSpan pooled);
// The pooled side has a quarter of the elements.
void CheckPool(const PoolShape& shape, size_t pooled, size_t full);

// The counts of Ops::Apply.
void CheckStep(const OptimizerStep& step, Span weights, ConstSpan gradient, const std::array<Span, 2>& slots);

elementwise::AdamRates RatesOf(const AdamStep& step);

}  // namespace psring
