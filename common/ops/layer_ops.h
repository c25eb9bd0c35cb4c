// The arithmetic of layers, by family. ops.h states what holds for all of them: layouts, types, streams.
//
// The backward pass of a layer with weights has two parts: BackwardInput continues the chain of gradients to
// the layers before it, BackwardWeight may run at any later time.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "common/device/device.h"

namespace psring {

enum class Activation : uint8_t { kNone, kRelu, kGelu };  // GELU: of linear layers only

struct LinearShape {
  int batch, inputs, outputs;
  Activation activation = Activation::kNone;
  auto operator<=>(const LinearShape&) const = default;
};

// x [batch][inputs], weight [outputs][inputs], bias [outputs], y [batch][outputs]. Optional spans have null
// data where they are absent: the bias and its gradient (only without activation), a residual, dx, `saved`.
class LinearOps {
 public:
  virtual ~LinearOps() = default;
  // y = activation(x w^T + b) + residual. `residual` [batch][outputs]: only without activation. `saved`: with
  // GELU [batch][outputs], receives x w^T + b for BackwardInput; otherwise absent.
  virtual void Forward(const LinearShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias,
                       ConstSpan residual, Span y, Span saved, Stream& stream) = 0;
  // Replaces dy, the gradient of y, by the gradient of x w^T + b, and writes its sums over the batch to dbias
  // in the same pass; then writes dx. `saved`: with ReLU y, with GELU that of Forward, otherwise absent.
  virtual void BackwardInput(const LinearShape& shape, ConstSpan weight, ConstSpan saved, Span dy, Span dx,
                             Span dbias, Stream& stream) = 0;
  // Writes dweight. `dy`: as BackwardInput left it.
  virtual void BackwardWeight(const LinearShape& shape, ConstSpan x, ConstSpan dy, Span dweight,
                              Stream& stream) = 0;
};

struct ConvShape {
  int batch, height, width, in_channels, out_channels, kernel;
  Activation activation = Activation::kNone;
  int stride = 1;   // between windows, in both directions
  int padding = 0;  // rows and columns of zeros at each side of a picture
  int out_height() const { return (height + 2 * padding - kernel) / stride + 1; }
  int out_width() const { return (width + 2 * padding - kernel) / stride + 1; }
  auto operator<=>(const ConvShape&) const = default;
};

// x [batch][height][width][in_channels], weight [out_channels][kernel][kernel][in_channels], bias
// [out_channels], y [batch][out_height][out_width][out_channels]. Otherwise as LinearOps.
// `add`: BackwardInput adds to dx, where another reader of x has left its gradient; not on GPUs.
class ConvolutionOps {
 public:
  virtual ~ConvolutionOps() = default;
  virtual void Forward(const ConvShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                       Stream& stream) = 0;
  virtual void BackwardInput(const ConvShape& shape, ConstSpan weight, ConstSpan saved, Span dy, Span dx,
                             bool add, Span dbias, Stream& stream) = 0;
  virtual void BackwardWeight(const ConvShape& shape, ConstSpan x, ConstSpan dy, Span dweight,
                              Stream& stream) = 0;
};

// For Max: 2 x 2 windows, stride 2; height and width are even.
struct PoolShape {
  int batch, height, width, channels;
  auto operator<=>(const PoolShape&) const = default;
};

class PoolingOps {
 public:
  virtual ~PoolingOps() = default;
  // y [batch][height/2][width/2][channels]; argmax holds, per output, the index (row-major) of the window's
  // maximum (the first on a tie).
  virtual void MaxForward(const PoolShape& shape, ConstSpan x, Span y, uint8_t* argmax, Stream& stream) = 0;
  virtual void MaxBackward(const PoolShape& shape, ConstSpan dy, const uint8_t* argmax, Span dx,
                           Stream& stream) = 0;
  // y [batch][channels]: the means over all positions of a picture, of any height and width.
  virtual void AverageForward(const PoolShape& shape, ConstSpan x, Span y, Stream& stream) = 0;
  virtual void AverageBackward(const PoolShape& shape, ConstSpan dy, Span dx, Stream& stream) = 0;
};

// Batch normalization (Ioffe & Szegedy 2015).
struct BatchNormShape {
  int rows, channels;  // rows: pictures times positions
  float epsilon = 1e-5f;
  bool relu = false;  // y = max(0, normalized + residual)
};

// x, y, residual and their gradients [rows][channels]; weight, bias and their gradients [channels].
// Statistics [2][channels] are the means and the variances (divided by the rows, not by one less). Everything
// but activations is float32.
//
// Statistics and normalization are separate, so that evaluation passes running statistics, and ranks may
// combine theirs in between. The same holds for the two sums of the backward pass, dweight and dbias.
class BatchNormOps {
 public:
  virtual ~BatchNormOps() = default;
  // Writes the statistics of x, of at least one row.
  virtual void Statistics(const BatchNormShape& shape, ConstSpan x, Span statistics, Stream& stream) = 0;
  // running += momentum * (statistics - running), with the unbiased variance of `shape.rows` rows (PyTorch's
  // rule; of one row the variance is taken as it is).
  virtual void UpdateRunning(const BatchNormShape& shape, float momentum, ConstSpan statistics, Span running,
                             Stream& stream) = 0;
  // y = (x - mean) / sqrt(variance + epsilon) * weight + bias + residual, then ReLU. residual.data may be
  // null.
  virtual void Forward(const BatchNormShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias,
                       ConstSpan residual, ConstSpan statistics, Span y, Stream& stream) = 0;
  // Masks dy in place where y is 0, if the shape has ReLU: dy is then also the residual's gradient. Writes
  // dweight and dbias in the same pass. y.data may be null without ReLU.
  virtual void BackwardSums(const BatchNormShape& shape, ConstSpan x, ConstSpan statistics, ConstSpan y,
                            Span dy, Span dweight, Span dbias, Stream& stream) = 0;
  // Writes dx, for statistics of the same rows. dy, dweight and dbias: as BackwardSums left them.
  virtual void BackwardInput(const BatchNormShape& shape, ConstSpan x, ConstSpan weight, ConstSpan statistics,
                             ConstSpan dy, ConstSpan dweight, ConstSpan dbias, Span dx, Stream& stream) = 0;
};

// The label of a row that does not count.
constexpr int32_t kIgnoredLabel = -1;

class LossOps {
 public:
  virtual ~LossOps() = default;
  // logits [batch][classes], labels [batch]. Adds the batch's summed loss to *loss_sum and its number of
  // correct predictions (highest logit, the first on a tie) to *correct. dlogits = softmax - onehot (the
  // gradient of the sum, not divided by the batch), 0 where the label is kIgnoredLabel; may be the same
  // memory as logits; skipped if dlogits.data is null. Any other label outside the classes is an error of the
  // stream; on a GPU it makes the loss NaN.
  virtual void SoftmaxCrossEntropy(int batch, int classes, ConstSpan logits, const int32_t* labels,
                                   Span dlogits, double* loss_sum, int64_t* correct, Stream& stream) = 0;
};

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

// Of attention: some queries of each sample and some keys, of other positions perhaps. Memory has `rows` of a
// sample, of which the block has `count` from `first` on. Query i, counted from the first, attends to the
// keys 0 ... i + offset, as far as there are any: `offset` is the position of the first query less that of
// the first key.
struct AttentionBlock {
  struct Part {
    int rows, first, count;
  };
  int batch, heads, head_size;
  Part queries, keys;
  int offset;
  int width() const { return heads * head_size; }
};

// AttentionOps::ForwardBlock's log_sum_exp of a query that has attended to no keys yet; its y is 0.
constexpr float kNoKeys = -3e38f;

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

  // Attention in blocks, of keys and values that other ranks have: kv
  // [batch][keys.rows][2][heads][head_size]. Other spans as above with queries.rows for the context; keys and
  // values of qkv are not used. Merges the block into y and log_sum_exp, which have the mean over the keys of
  // earlier blocks: with s and s' the sums of exponentials, y = (s y + s' y') / (s + s'). Each time y is
  // rounded to its type.
  virtual void ForwardBlock(const AttentionBlock& block, ConstSpan qkv, ConstSpan kv, Span y,
                            Span log_sum_exp, Stream& stream) = 0;
  // With y and log_sum_exp of all blocks. Adds to the gradient of the block's queries in dqkv, and writes
  // that of its keys and values in dkv.
  virtual void BackwardBlock(const AttentionBlock& block, ConstSpan qkv, ConstSpan kv, ConstSpan y,
                             ConstSpan log_sum_exp, ConstSpan dy, Span dqkv, Span dkv, Stream& stream) = 0;
};

// Dropout (Srivastava et al. 2014), inverted: in training each element is 0 with this probability, and the
// others are multiplied by 1 / (1 - probability).
struct DropoutShape {
  int batch;
  size_t elements;     // of a sample, which has fewer than 2^34
  double probability;  // in [0, 1)
  uint32_t layer;      // its number among the layers that draw
  size_t first = 0;    // `elements` are those of a sample from this one on
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
  // The table has the rows from `first` on of one with `all` rows, and the rows of other indices count as 0;
  // `all` 0: it is the whole table.
  int first = 0, all = 0;
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
  // there); writes dpositions, of all indices. Sums are in the order of the indices.
  virtual void Backward(const EmbeddingShape& shape, const int32_t* indices, ConstSpan dy, Span dtable,
                        Span dpositions, bool add, Stream& stream) = 0;
};

// Bags of one table in a batch. `at` [batch][lookups] contains each lookup's row of `values` [rows][width].
// Bag b of a sample sums the rows of its lookups first + b * per_bag ... + per_bag - 1.
struct BagShape {
  int batch, lookups;
  int first, bags, per_bag;
  int rows, width;
  int all_bags, first_bag;  // y [batch][all_bags][width] also has bags of other tables
};

// Rows whose gradient a batch adds to: row slots[i] of the gradient gets the rows bags[begin[i]] ...
// bags[begin[i + 1] - 1] of dy.
struct RowGroups {
  absl::Span<const int32_t> slots, begin, bags;
};

// `values` and gradients are float32.
class BagOps {
 public:
  virtual ~BagOps() = default;
  // Writes these bags of y. A row outside `values` is an error of the stream.
  virtual void Forward(const BagShape& shape, const int32_t* at, ConstSpan values, Span y,
                       Stream& stream) = 0;
  // Adds to `gradient` [][width], for each slot the sum of its rows of dy in their order. The groups are
  // borrowed until the stream has run.
  virtual void Backward(int width, const RowGroups& groups, ConstSpan dy, Span gradient, Stream& stream) = 0;
};

enum class Dots : uint8_t {
  // y [batch][width + n(n+1)/2] = a, then the products of all pairs of the n + 1 vectors a, b_1, ..., b_n
  // (pair (j, i), i < j, in the order of j, then i): DLRM's interaction (Naumov et al. 2019).
  kAllPairs,
  // y [batch][n][2] = 0 and the product a . b_i: the two logits of a binary choice.
  kFirstWithOthers,
};

struct DotShape {
  Dots kind;
  int batch, others, width;  // others: n
  size_t outputs() const {   // per sample
    const size_t n = static_cast<size_t>(others);
    return kind == Dots::kAllPairs ? static_cast<size_t>(width) + n * (n + 1) / 2 : 2 * n;
  }
};

// a [batch][width], b [batch][n][width].
class DotOps {
 public:
  virtual ~DotOps() = default;
  virtual void Forward(const DotShape& shape, ConstSpan a, ConstSpan b, Span y, Stream& stream) = 0;
  // Writes da and db.
  virtual void Backward(const DotShape& shape, ConstSpan a, ConstSpan b, ConstSpan dy, Span da, Span db,
                        Stream& stream) = 0;
};

// Null: this implementation does not have the family.
struct OpFamilies {
  std::unique_ptr<LinearOps> linear;
  std::unique_ptr<ConvolutionOps> convolution;
  std::unique_ptr<PoolingOps> pooling;
  std::unique_ptr<LossOps> loss;
  std::unique_ptr<NormalizationOps> normalization;
  std::unique_ptr<AttentionOps> attention;
  std::unique_ptr<EmbeddingOps> embedding;
  std::unique_ptr<DropoutOps> dropout;
  std::unique_ptr<BatchNormOps> batch_norm;
  std::unique_ptr<BagOps> bags;
  std::unique_ptr<DotOps> dots;
};

}  // namespace psring
