// Loops over elements that ops on CPUs and other code share; see cpu_layers.h for how they are compiled. Each
// element's result depends only on that element's inputs, whatever the range and alignment. Pointers may not
// overlap.
#pragma once

#include <cstddef>

#include "common/ops/ops.h"

namespace psring::cpu {

// to += from.
void Add(size_t count, float* to, const float* from);

// `a`, `b`: the slots of the step's state; null if it has none.
void Apply(const OptimizerStep& step, size_t count, float* weights, const float* gradient, float* a,
           float* b);

// float32 or bfloat16, in one pass over dy, [rows][columns]: dy = 0 where y is 0 (y is an output of relu,
// never negative; with y.data null dy stays), and sums[c] = the sum of dy's column c, added in the order of
// the rows.
void MaskAndSum(ConstSpan y, Span dy, size_t columns, float* sums);

// y = GELU(x); see elementwise_math.h.
void Gelu(ConstSpan x, Span y);
// The same pass as MaskAndSum with dy *= GELU's slope at `x`.
void GeluGradientAndSum(ConstSpan x, Span dy, size_t columns, float* sums);

}  // namespace psring::cpu
