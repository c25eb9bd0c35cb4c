// A layer of a sequential network. It owns its outputs, reads its weights from one flat buffer and writes its
// gradients into another.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "common/base/parameters.h"
#include "common/base/random.h"
#include "common/device/device.h"
#include "common/ops/ops.h"

namespace psring {

class Layer {
 public:
  virtual ~Layer() = default;

  // Before the first Forward: allocates outputs and their gradients for `max_batch` samples of `type`.
  virtual absl::Status Allocate(int max_batch, DType type, Device& device) {
    type_ = type;
    PSRING_ASSIGN_OR_RETURN(y_, device.Allocate(max_batch * outputs_ * SizeOf(type)));
    PSRING_ASSIGN_OR_RETURN(dy_, device.Allocate(max_batch * outputs_ * SizeOf(type)));
    return absl::OkStatus();
  }

  // Elements per sample.
  size_t outputs() const { return outputs_; }
  // Of the last Forward.
  Span output(int batch) const { return y_.span(type_).Slice(0, batch * outputs_); }
  // Written by the next layer or the loss; Backward may change it.
  Span output_gradient(int batch) const { return dy_.span(type_).Slice(0, batch * outputs_); }

  // The elements of the flat buffers that belong to this layer; none by default.
  virtual ReadyRange parameters() const { return {}; }

  // Fills this layer's part of `weights`, on the host.
  virtual void Initialize(Random& random, std::vector<float>& weights) const = 0;

  // `x` is the layer's input, `weights` the entire flat buffer.
  virtual void Forward(int batch, ConstSpan weights, ConstSpan x, Ops& ops, Stream& stream) = 0;
  // Computes from output_gradient this layer's part of `gradient` (the entire flat buffer) and, unless
  // dx.data is null, the gradient of `x`.
  virtual void Backward(int batch, ConstSpan weights, ConstSpan x, Span dx, Span gradient, Ops& ops,
                        Stream& stream) = 0;

 protected:
  explicit Layer(size_t outputs) : outputs_(outputs) {}

 private:
  size_t outputs_;
  DType type_ = DType::kFloat32;
  Buffer y_, dy_;
};

// The position of a layer's weight and bias in the flat buffers.
struct WeightAndBias {
  Tensor weight, bias;
  size_t fan_in;  // products per output

  // `image`: the shape of one output's inputs, if they are an image.
  WeightAndBias(const std::string& name, std::vector<int> weight_shape, ParameterLayout& layout,
                ImageShape image = {});
  ReadyRange range() const { return {weight.first, weight.count + bias.count}; }
  void Initialize(Random& random, std::vector<float>& weights) const;
};

inline ConstSpan Part(ConstSpan flat, const Tensor& tensor) { return flat.Slice(tensor.first, tensor.count); }
inline Span Part(const Span& flat, const Tensor& tensor) { return flat.Slice(tensor.first, tensor.count); }

}  // namespace psring
