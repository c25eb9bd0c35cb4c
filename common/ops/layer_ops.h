// The arithmetic of layers, by family. ops.h states what holds for all of them: layouts, types, streams.
//
// The backward pass of a layer with weights has two parts: BackwardInput continues the chain of gradients to
// the layers before it, BackwardWeight may run at any later time.
#pragma once

#include <compare>
#include <cstdint>

#include "common/device/device.h"
#include "common/ops/row_ops.h"
#include "common/ops/transformer_ops.h"

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

// Owned by an Ops. Null: this implementation does not have the family.
struct OpFamilies {
  LinearOps* linear = nullptr;
  ConvolutionOps* convolution = nullptr;
  PoolingOps* pooling = nullptr;
  LossOps* loss = nullptr;
  NormalizationOps* normalization = nullptr;
  AttentionOps* attention = nullptr;
  EmbeddingOps* embedding = nullptr;
  DropoutOps* dropout = nullptr;
  BatchNormOps* batch_norm = nullptr;
  BagOps* bags = nullptr;
  DotOps* dots = nullptr;
};

}  // namespace psring
