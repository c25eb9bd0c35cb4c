// A layer of a network. It has no state: weights, buffers, activations and gradients are passed in, so that
// several micro-batches can be in flight.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/parameters.h"
#include "common/base/random.h"
#include "common/device/device.h"
#include "common/ops/ops.h"

namespace psring {

class SharedStatistics;
class TouchedRows;
struct BatchLookups;

constexpr size_t kMaxInputs = 2;

// Consecutive layers [first, end) of a model, such as a transformer block, or a unit of a training step.
struct LayerRange {
  size_t first = 0, end = 0;
};

// How a layer computes the gradient of one of its inputs.
enum class InputGradient : uint8_t {
  kWritten,  // it writes dx
  kAddable,  // it writes dx, or adds to it if the input has other readers
  kPassed,   // dx is dy, unchanged: in the same memory, without work, or the network copies it
};

// What a rank sends to the others of its TensorAxis and SequenceAxis, on average over them.
struct AxisTraffic {
  double forward = 0, backward = 0;  // elements of a sample, of activations
  double of_batch = 0;               // in backward, for a batch as a whole: float32
};

// What a layer needs. Sizes are per sample.
struct LayerTraits {
  size_t outputs;              // elements
  size_t kept_bytes = 0;       // what Forward keeps for backward beside x and y: in other types than these
  size_t kept_elements = 0;    // and in the type of activations, after kept_bytes
  size_t kept_once = 0;        // bytes that it keeps of the batch as a whole, before those of the samples
  ReadyRange parameters = {};  // its part of the flat buffers; several layers may share one
  size_t early = 0;            // of `parameters` the last elements, whose gradient BackwardInput writes
  ReadyRange buffers = {};     // its part of ParameterLayout::buffers
  std::vector<InputGradient> inputs = {InputGradient::kWritten};
  size_t gathered = 0;        // the most elements that it needs in a piece of a TensorAxis
  size_t exchanged = 0;       // elements of the memory of a SequenceAxis that it needs
  size_t exchanged_once = 0;  // bytes of it that it needs for the batch as a whole, at another time
  // Forward replaces its only input by what backward needs, in its place. No other layer reads that value,
  // and the layer that computed it does not need it in backward.
  bool replaces_x = false;
  AxisTraffic sends = {};

  // Whether BackwardWeight, which may come much later, needs dy.
  bool keeps_dy() const { return parameters.count > early; }
};

// How forward treats a batch.
enum class PassMode : uint8_t {
  kTraining,    // normalizes by the batch's statistics
  kEvaluation,  // normalizes by running statistics; no backward follows
  // After kTraining with the same x and weights: computes the same bits of y and of what it keeps of samples.
  // What it keeps of the batch as a whole is still there. Changes nothing else, and communicates only over a
  // TensorAxis or a SequenceAxis.
  kRecompute,
};

// The memory of one call. Activations have the type of `ops`; spans contain exactly `batch` samples.
struct LayerPass {
  int batch;          // samples, at least 1
  PassMode mode;      // of forward
  ConstSpan weights;  // of this layer
  // Of this layer. Training updates them, unless data is null; evaluation reads them.
  Span buffers;
  SharedStatistics* statistics;           // null: each rank normalizes its own batch
  TouchedRows* rows = nullptr;            // of the tables; null: the model has none
  const BatchLookups* lookups = nullptr;  // of this batch
  // Of layers that draw random numbers, by sample, on the host; null: they draw nothing.
  const uint64_t* sample_seeds = nullptr;
  std::array<ConstSpan, kMaxInputs> x;  // indices (int32) have 4 bytes each, whatever their span's type
  Span replaced = {};                   // x[0] of a layer with LayerTraits::replaces_x
  Span y;
  std::byte* kept;
  // In backward:
  Span dy;                                 // BackwardInput may change it, for BackwardWeight
  std::array<Span, kMaxInputs> dx;         // data null: not needed
  std::array<bool, kMaxInputs> adds = {};  // of a kAddable input: add to dx
  Span gradient;                           // of this layer's weights
  bool adds_gradient = false;              // a later layer that shares the weights has written `gradient`
  Ops& ops;
  Stream& stream;
};

// The calls enqueue on the stream and return; one thread at a time.
class Layer {
 public:
  explicit Layer(LayerTraits traits) : traits_(std::move(traits)) {}
  virtual ~Layer() = default;

  const LayerTraits& traits() const { return traits_; }

  // Draws this layer's part of the weights, on the host. Before, `own` is 0, except for what a layer that
  // shares it has drawn.
  virtual void Initialize(Random& random, float* own) const = 0;

  virtual absl::Status Forward(const LayerPass& pass) const = 0;
  // Computes dx from dy, and LayerTraits::early elements of `gradient`, such as those of biases. Always
  // called, before BackwardWeight.
  virtual absl::Status BackwardInput(const LayerPass& pass) const = 0;
  // Computes the rest of `gradient`.
  virtual absl::Status BackwardWeight(const LayerPass& pass) const = 0;

 protected:
  // `tensor`'s part of a view of this layer's parameters.
  ConstSpan Part(ConstSpan own, const Tensor& tensor) const {
    return own.Slice(tensor.first - traits_.parameters.first, tensor.count);
  }
  Span Part(const Span& own, const Tensor& tensor) const {
    return own.Slice(tensor.first - traits_.parameters.first, tensor.count);
  }

 private:
  const LayerTraits traits_;
};

class LayerWithoutParameters : public Layer {
 public:
  using Layer::Layer;
  void Initialize(Random&, float*) const override {}
  absl::Status BackwardWeight(const LayerPass&) const override { return absl::OkStatus(); }
};

// `shape`, of an op, with this number of samples.
template <typename Shape>
Shape ForBatch(Shape shape, int batch) {
  shape.batch = batch;
  return shape;
}

// LayerTraits::inputs of a layer that adds its second input, if it has one.
inline std::vector<InputGradient> WrittenAndPassed(bool has_second) {
  return has_second ? std::vector{InputGradient::kWritten, InputGradient::kPassed}
                    : std::vector{InputGradient::kWritten};
}

// Where a layer's weight and bias are in the flat buffers. Tensors are copies: the layout's list may move
// when it grows.
struct WeightAndBias {
  Tensor weight, bias;  // bias.count is 0 if there is none

  // Adds both to `layout`. `image`: the shape of one output's inputs, if they are an image. Shapes are of the
  // parts.
  static WeightAndBias In(ParameterLayout& layout, const std::string& name, std::vector<int> weight_shape,
                          ImageShape image = {}, bool has_bias = true, TensorPart weight_part = {},
                          TensorPart bias_part = {});
  ReadyRange range() const { return {weight.first, weight.space + bias.space}; }
};

// Uniform in +-1/sqrt(inputs of an output), PyTorch's default for linear and convolution layers. `own`: of a
// layer with these parameters.
void InitializeUniform(const WeightAndBias& parameters, Random& random, float* own);
// Normal with mean 0, into `values` of the tensor. Of a part, the whole tensor is drawn, so that its values
// do not depend on the division.
void InitializeNormal(const Tensor& tensor, float deviation, Random& random, float* values);

}  // namespace psring
