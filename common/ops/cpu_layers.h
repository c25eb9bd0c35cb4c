// Normalization, attention, embeddings, dropout and the loss on CPUs, for activations of one type, float32 or
// bfloat16.
#pragma once

#include <vector>

#include "common/attention/attention.h"
#include "common/ops/ops.h"

namespace psring {

class CpuNormalization : public NormalizationOps {
 public:
  explicit CpuNormalization(DType activations) : type_(activations) {}
  void LayerNormForward(const LayerNormShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                        Span statistics, Stream& stream) override;
  void LayerNormBackward(const LayerNormShape& shape, ConstSpan x, ConstSpan weight, ConstSpan statistics,
                         ConstSpan dy, Span dx, bool add, Span dweight, Span dbias, Stream& stream) override;

 private:
  const DType type_;
};

class CpuAttention : public AttentionOps {
 public:
  // `threads`: cores that one call may use, each for a part of the heads. Results do not depend on it.
  CpuAttention(DType activations, int threads);
  void Forward(const AttentionShape& shape, ConstSpan qkv, Span y, Span log_sum_exp, Stream& stream) override;
  void Backward(const AttentionShape& shape, ConstSpan qkv, ConstSpan y, ConstSpan log_sum_exp, ConstSpan dy,
                Span dqkv, Stream& stream) override;

 private:
  void ForEachHead(const AttentionShape& shape, const cpu::Attention& attention,
                   void (*kernel)(const cpu::Attention&, int, float*));

  const DType type_;
  const int threads_;
  const cpu::AttentionKernels& kernels_;
  std::vector<float> scratch_;  // grows to the largest need
};

class CpuEmbedding : public EmbeddingOps {
 public:
  explicit CpuEmbedding(DType activations) : type_(activations) {}
  void Forward(const EmbeddingShape& shape, const int32_t* indices, ConstSpan table, ConstSpan positions,
               Span y, Stream& stream) override;
  void Backward(const EmbeddingShape& shape, const int32_t* indices, ConstSpan dy, Span dtable,
                Span dpositions, bool add, Stream& stream) override;

 private:
  const DType type_;
};

class CpuDropout : public DropoutOps {
 public:
  explicit CpuDropout(DType activations) : type_(activations) {}
  void Apply(const DropoutShape& shape, const uint64_t* seeds, ConstSpan x, ConstSpan residual, Span y,
             Stream& stream) override;

 private:
  const DType type_;
};

class CpuBatchNorm : public BatchNormOps {
 public:
  explicit CpuBatchNorm(DType activations) : type_(activations) {}
  void Statistics(const BatchNormShape& shape, ConstSpan x, Span statistics, Stream& stream) override;
  void UpdateRunning(const BatchNormShape& shape, float momentum, ConstSpan statistics, Span running,
                     Stream& stream) override;
  void Forward(const BatchNormShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan residual,
               ConstSpan statistics, Span y, Stream& stream) override;
  void BackwardSums(const BatchNormShape& shape, ConstSpan x, ConstSpan statistics, ConstSpan y, Span dy,
                    Span dweight, Span dbias, Stream& stream) override;
  void BackwardInput(const BatchNormShape& shape, ConstSpan x, ConstSpan weight, ConstSpan statistics,
                     ConstSpan dy, ConstSpan dweight, ConstSpan dbias, Span dx, Stream& stream) override;

 private:
  const DType type_;
  std::vector<double> sums_;    // two per channel
  std::vector<float> factors_;  // one or two and a summand per channel
};

class CpuLoss : public LossOps {
 public:
  explicit CpuLoss(DType activations) : type_(activations) {}
  void SoftmaxCrossEntropy(int batch, int classes, ConstSpan logits, const int32_t* labels, Span dlogits,
                           double* loss_sum, int64_t* correct, Stream& stream) override;

 private:
  const DType type_;
};

class CpuBags : public BagOps {
 public:
  explicit CpuBags(DType activations) : type_(activations) {}
  void Forward(const BagShape& shape, const int32_t* at, ConstSpan values, Span y, Stream& stream) override;
  void Backward(int width, const RowGroups& groups, ConstSpan dy, Span gradient, Stream& stream) override;

 private:
  const DType type_;
};

class CpuDots : public DotOps {
 public:
  explicit CpuDots(DType activations) : type_(activations) {}
  void Forward(const DotShape& shape, ConstSpan a, ConstSpan b, Span y, Stream& stream) override;
  void Backward(const DotShape& shape, ConstSpan a, ConstSpan b, ConstSpan dy, Span da, Span db,
                Stream& stream) override;

 private:
  const DType type_;
};

}  // namespace psring
