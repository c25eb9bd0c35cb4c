// Loops of transformers that all CPU implementations of Ops share, except attention; see cpu_kernels.h for
// how they are compiled, and ops.h for shapes. Each makes one pass over memory: a row that is read again is
// in the first-level cache. Sums over a row are added in 16 lanes and then lane by lane, on every processor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/ops/ops.h"

namespace psring::cpu {

// y = GELU(x); see elementwise_math.h.
void Gelu(ConstSpan x, Span y);

// In one pass over dy [rows][columns]: dy *= GELU's slope at `x`, and sums[c] = the sum of dy's column c,
// added in the order of the rows.
void GeluGradientAndSum(ConstSpan x, Span dy, size_t columns, float* sums);

void LayerNormForward(const LayerNormShape& shape, ConstSpan x, const float* weight, const float* bias,
                      Span y, float* statistics);
void LayerNormBackward(const LayerNormShape& shape, ConstSpan x, const float* weight, const float* statistics,
                       ConstSpan dy, Span dx, bool add, float* dweight, float* dbias);

// As DropoutOps::Apply.
void Dropout(const DropoutShape& shape, const uint64_t* seeds, ConstSpan x, ConstSpan residual, Span y);

// As LossOps::SoftmaxCrossEntropy. The row of the first label that is neither a class nor ignored, or -1;
// then nothing is written.
int SoftmaxCrossEntropy(int batch, int classes, ConstSpan logits, const int32_t* labels, Span dlogits,
                        double* loss_sum, int64_t* correct);

// The first index that is outside the table, or -1; then nothing is written.
int EmbeddingForward(const EmbeddingShape& shape, const int32_t* indices, const float* table,
                     const float* positions, Span y);
// Only adds to dtable.
int EmbeddingBackward(const EmbeddingShape& shape, const int32_t* indices, ConstSpan dy, float* dtable,
                      float* dpositions);

}  // namespace psring::cpu
