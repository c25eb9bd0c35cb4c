// The arithmetic of layers, by family. ops.h states what holds for all of them: layouts, types, streams.
//
// The backward pass of a layer with weights has two parts: BackwardInput continues the chain of gradients to
// the layers before it, BackwardWeight may run at any later time.
#pragma once

#include <compare>
#include <cstdint>

#include "common/device/device.h"

namespace psring {

enum class Activation : uint8_t { kNone, kRelu };

struct LinearShape {
  int batch, inputs, outputs;
  Activation activation = Activation::kNone;  // y = activation(x w^T + b)
  auto operator<=>(const LinearShape&) const = default;
};

// x [batch][inputs], weight [outputs][inputs], bias [outputs], y [batch][outputs].
class LinearOps {
 public:
  virtual ~LinearOps() = default;
  virtual void Forward(const LinearShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                       Stream& stream) = 0;
  // Replaces dy, the gradient of y, by the gradient of x w^T + b, and writes its sums over the batch to dbias
  // in the same pass; then writes dx unless dx.data is null. `saved`: y, if the layer has ReLU.
  virtual void BackwardInput(const LinearShape& shape, ConstSpan weight, ConstSpan saved, Span dy, Span dx,
                             Span dbias, Stream& stream) = 0;
  // Writes dweight. `dy`: as BackwardInput left it.
  virtual void BackwardWeight(const LinearShape& shape, ConstSpan x, ConstSpan dy, Span dweight,
                              Stream& stream) = 0;
};

// Stride 1, no padding: output is (height - kernel + 1) x (width - kernel + 1).
struct ConvShape {
  int batch, height, width, in_channels, out_channels, kernel;
  Activation activation = Activation::kNone;
  int out_height() const { return height - kernel + 1; }
  int out_width() const { return width - kernel + 1; }
  auto operator<=>(const ConvShape&) const = default;
};

// x [batch][height][width][in_channels], weight [out_channels][kernel][kernel][in_channels], bias
// [out_channels], y [batch][out_height][out_width][out_channels]. Arguments as those of LinearOps.
class ConvolutionOps {
 public:
  virtual ~ConvolutionOps() = default;
  virtual void Forward(const ConvShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                       Stream& stream) = 0;
  virtual void BackwardInput(const ConvShape& shape, ConstSpan weight, ConstSpan saved, Span dy, Span dx,
                             Span dbias, Stream& stream) = 0;
  virtual void BackwardWeight(const ConvShape& shape, ConstSpan x, ConstSpan dy, Span dweight,
                              Stream& stream) = 0;
};

// 2 x 2 windows, stride 2; height and width are even.
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
};

class LossOps {
 public:
  virtual ~LossOps() = default;
  // logits [batch][classes], labels [batch]. Adds the batch's summed loss to *loss_sum and its number of
  // correct predictions (highest logit, the first on a tie) to *correct. dlogits = softmax - onehot (the
  // gradient of the sum, not divided by the batch); may be the same memory as logits; skipped if dlogits.data
  // is null.
  virtual void SoftmaxCrossEntropy(int batch, int classes, ConstSpan logits, const int32_t* labels,
                                   Span dlogits, double* loss_sum, int64_t* correct, Stream& stream) = 0;
};

// Owned by an Ops. Null: this implementation does not have the family.
struct OpFamilies {
  LinearOps* linear = nullptr;
  ConvolutionOps* convolution = nullptr;
  PoolingOps* pooling = nullptr;
  LossOps* loss = nullptr;
};

}  // namespace psring
