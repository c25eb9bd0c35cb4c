// Elementwise loops that all CPU implementations of Ops share, compiled for several instruction sets; the
// best one is chosen when the program starts.
//
// Each element's result depends only on that element's inputs and is rounded after every operation (no
// contraction to fused multiply-add), so the bits are the same on every processor, whatever the range and
// alignment. Pointers may not overlap unless said otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/ops/ops.h"

namespace psring::cpu {

// to += from.
void Add(size_t count, float* to, const float* from);

void Apply(const SgdStep& step, size_t count, float* weights, const float* gradient);
void Apply(const MomentumStep& step, size_t count, float* weights, const float* gradient, float* velocity);
void Apply(const AdagradStep& step, size_t count, float* weights, const float* gradient, float* sum);
void Apply(const AdamStep& step, size_t count, float* weights, const float* gradient, float* mean,
           float* variance);

// float32 or bfloat16, in one pass over dy, [rows][columns]: dy = 0 where y is 0 (y is an output of relu,
// never negative; with y.data null dy stays), and sums[c] = the sum of dy's column c, added in the order of
// the rows.
void MaskAndSum(ConstSpan y, Span dy, size_t columns, float* sums);

void MaxPoolForward(const PoolShape& shape, ConstSpan x, Span y, uint8_t* argmax);
void MaxPoolBackward(const PoolShape& shape, ConstSpan dy, const uint8_t* argmax, Span dx);

// Added up in float32 in the order of the positions.
void AveragePoolForward(const PoolShape& shape, ConstSpan x, Span y);
void AveragePoolBackward(const PoolShape& shape, ConstSpan dy, Span dx);

// The first lookup of the batch whose row is outside the table, or -1; then y is incomplete.
int BagsForward(const BagShape& shape, const int32_t* at, const float* values, Span y);
void BagsBackward(size_t width, const RowGroups& groups, ConstSpan dy, float* gradient);

void DotsForward(const DotShape& shape, ConstSpan a, ConstSpan b, Span y);
void DotsBackward(const DotShape& shape, ConstSpan a, ConstSpan b, ConstSpan dy, Span da, Span db);

}  // namespace psring::cpu
