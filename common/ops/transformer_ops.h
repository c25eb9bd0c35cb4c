// The arithmetic of transformers and embeddings, by family; see layer_ops.h.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

#include "common/device/device.h"

namespace psring {

struct LayerNormShape {
  int rows, width;
  float epsilon = 1e-5f;
};

// Weights, biases, their gradients and statistics are float32.
class NormalizationOps {
 public:
  virtual ~NormalizationOps() = default;
  // y = (x - mean) / sqrt(variance + epsilon) * weight + bias for each row (Ba et al. 2016). x and y [rows]
  // [width], weight and bias [width], statistics [2][rows]: the means, and 1 / sqrt(variance + epsilon).
  virtual void LayerNormForward(const LayerNormShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias,
                                Span y, Span statistics, Stream& stream) = 0;
  // Writes dweight and dbias. Writes dx or, if `add`, adds to it: a residual branch has left its gradient
  // there.
  virtual void LayerNormBackward(const LayerNormShape& shape, ConstSpan x, ConstSpan weight,
                                 ConstSpan statistics, ConstSpan dy, Span dx, bool add, Span dweight,
                                 Span dbias, Stream& stream) = 0;
};

struct AttentionShape {
  int batch, context, heads, head_size;
  int width() const { return heads * head_size; }
};

// Causal multi-head self-attention (Vaswani et al. 2017): row i of a head's output is the mean of the value
// rows 0 ... i, weighted by softmax(query_i . key_j / sqrt(head_size)). Memory grows linearly with the
// context: blocks of scores are computed with an online softmax (Dao et al. 2022) and never stored.
class AttentionOps {
 public:
  virtual ~AttentionOps() = default;
  // qkv [batch][context][3][heads][head_size]: queries, keys, values. y [batch][context][heads][head_size].
  // log_sum_exp [batch][heads][context], float32: of the scores of each row, for Backward.
  virtual void Forward(const AttentionShape& shape, ConstSpan qkv, Span y, Span log_sum_exp,
                       Stream& stream) = 0;
  // Writes dqkv.
  virtual void Backward(const AttentionShape& shape, ConstSpan qkv, ConstSpan y, ConstSpan log_sum_exp,
                        ConstSpan dy, Span dqkv, Stream& stream) = 0;
};

// Dropout (Srivastava et al. 2014), inverted: in training each element is 0 with this probability, and the
// others are multiplied by 1 / (1 - probability).
struct DropoutShape {
  int batch;
  size_t elements;     // of a sample, below 2^34
  double probability;  // in [0, 1)
  uint32_t layer;      // its number among the layers that draw
};

class DropoutOps {
 public:
  virtual ~DropoutOps() = default;
  // y [batch][elements] = mask(x) + residual. residual.data may be null. `seeds` [batch]: what is dropped of
  // a sample is a function of its seed, the layer and the element only (DropoutMask in ops_common.h); null:
  // nothing, and y = x + residual. With dy as x and without a residual, y is the gradient of x.
  virtual void Apply(const DropoutShape& shape, const uint64_t* seeds, ConstSpan x, ConstSpan residual,
                     Span y, Stream& stream) = 0;
};

struct EmbeddingShape {
  int count;        // indices
  int rows, width;  // of the table
  int context = 0;  // index i is at position i % context; 0: no positional embedding
};

// table [rows][width] and positions [context][width] are float32. An index outside the table is an error of
// the stream.
class EmbeddingOps {
 public:
  virtual ~EmbeddingOps() = default;
  // y [count][width]: y[i] = table[indices[i]] + positions[i % context].
  virtual void Forward(const EmbeddingShape& shape, const int32_t* indices, ConstSpan table,
                       ConstSpan positions, Span y, Stream& stream) = 0;
  // Writes dtable or, if `add`, adds to it (an output layer with the same weights has left its gradient
  // there); writes dpositions. Sums are in the order of the indices.
  virtual void Backward(const EmbeddingShape& shape, const int32_t* indices, ConstSpan dy, Span dtable,
                        Span dpositions, bool add, Stream& stream) = 0;
};

}  // namespace psring
