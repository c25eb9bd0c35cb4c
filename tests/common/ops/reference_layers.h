// The ops of layers other than products implemented by definition, in double precision, for float32
// activations.
#pragma once

#include "common/ops/ops.h"

namespace psring {

class ReferenceNormalization : public NormalizationOps {
 public:
  void LayerNormForward(const LayerNormShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                        Span statistics, Stream& stream) override;
  void LayerNormBackward(const LayerNormShape& shape, ConstSpan x, ConstSpan weight, ConstSpan statistics,
                         ConstSpan dy, Span dx, bool add, Span dweight, Span dbias, Stream& stream) override;
};

class ReferenceBatchNorm : public BatchNormOps {
 public:
  void Statistics(const BatchNormShape& shape, ConstSpan x, Span statistics, Stream& stream) override;
  void UpdateRunning(const BatchNormShape& shape, float momentum, ConstSpan statistics, Span running,
                     Stream& stream) override;
  void Forward(const BatchNormShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan residual,
               ConstSpan statistics, Span y, Stream& stream) override;
  void BackwardSums(const BatchNormShape& shape, ConstSpan x, ConstSpan statistics, ConstSpan y, Span dy,
                    Span dweight, Span dbias, Stream& stream) override;
  void BackwardInput(const BatchNormShape& shape, ConstSpan x, ConstSpan weight, ConstSpan statistics,
                     ConstSpan dy, ConstSpan dweight, ConstSpan dbias, Span dx, Stream& stream) override;
};

class ReferenceAttention : public AttentionOps {
 public:
  void Forward(const AttentionShape& shape, ConstSpan qkv, Span y, Span log_sum_exp, Stream& stream) override;
  void Backward(const AttentionShape& shape, ConstSpan qkv, ConstSpan y, ConstSpan log_sum_exp, ConstSpan dy,
                Span dqkv, Stream& stream) override;
};

class ReferenceEmbedding : public EmbeddingOps {
 public:
  void Forward(const EmbeddingShape& shape, const int32_t* indices, ConstSpan table, ConstSpan positions,
               Span y, Stream& stream) override;
  void Backward(const EmbeddingShape& shape, const int32_t* indices, ConstSpan dy, Span dtable,
                Span dpositions, bool add, Stream& stream) override;
};

class ReferenceDropout : public DropoutOps {
 public:
  void Apply(const DropoutShape& shape, const uint64_t* seeds, ConstSpan x, ConstSpan residual, Span y,
             Stream& stream) override;
};

class ReferenceLoss : public LossOps {
 public:
  void SoftmaxCrossEntropy(int batch, int classes, ConstSpan logits, const int32_t* labels, Span dlogits,
                           double* loss_sum, int64_t* correct, Stream& stream) override;
};

class ReferenceBags : public BagOps {
 public:
  void Forward(const BagShape& shape, const int32_t* at, ConstSpan values, Span y, Stream& stream) override;
  void Backward(int width, const RowGroups& groups, ConstSpan dy, Span gradient, Stream& stream) override;
};

class ReferenceDots : public DotOps {
 public:
  void Forward(const DotShape& shape, ConstSpan a, ConstSpan b, Span y, Stream& stream) override;
  void Backward(const DotShape& shape, ConstSpan a, ConstSpan b, ConstSpan dy, Span da, Span db,
                Stream& stream) override;
};

// GELU and its derivative by definition.
double ReferenceGelu(double u);
double ReferenceGeluSlope(double u);

}  // namespace psring
