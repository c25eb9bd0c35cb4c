// A network whose weights and gradients are two flat buffers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/ops/ops.h"
#include "trainer/data/data.h"

namespace psring {

// A batch on the device.
struct Batch {
  int size = 0;
  ConstSpan inputs;  // [size][height][width][channels]
  const int32_t* labels = nullptr;
};

struct BatchScore {
  double loss_sum = 0;
  int64_t correct = 0;
};

// Activations are allocated once, for batches up to `max_batch`. One thread at a time.
class Model {
 public:
  virtual ~Model() = default;

  virtual const ParameterLayout& parameters() const = 0;

  // From `seed`: uniform in +-1/sqrt(fan in), PyTorch's default for linear and convolution layers. On the
  // host; the same on every machine.
  virtual std::vector<float> InitialWeights(uint64_t seed) const = 0;

  // Forward and loss. Adds to *score, on the device, in stream order. Keeps what Backward needs.
  virtual void Forward(ConstSpan weights, const Batch& batch, BatchScore* score, Stream& stream) = 0;

  // Forward without the loss: [batch][classes], of the Ops' activation type. Empty for an empty batch or a
  // model that computes nothing.
  virtual ConstSpan Outputs(ConstSpan weights, const Batch& batch, Stream& stream) = 0;
  // The gradient of the outputs, which Backward reads. Written by Forward, or by the caller of Outputs.
  virtual Span OutputGradient(int batch) = 0;

  // Called when, in stream order, these elements of the gradient are complete and no later work of this step
  // reads their weights.
  using GradientReady = std::function<void(ReadyRange range)>;

  // Gradients (sums over the batch) of the last Forward into `gradient`. `ready` gets every element once, in
  // ranges of whole tensors, in the same order in every step.
  virtual void Backward(ConstSpan weights, const Batch& batch, Span gradient, Stream& stream,
                        const GradientReady& ready) = 0;
};

struct ModelRow {
  const char* name;
  const char* summary;
  double default_lr;        // synchronous modes, momentum 0.9
  double default_async_lr;  // asynchronous modes, momentum 0
  using Make = std::function<absl::StatusOr<std::unique_ptr<Model>>(const Dataset& data, int max_batch,
                                                                    Device& device, Ops& ops)>;
  Make make;
  // The same with `width` neurons in each hidden layer; null: the model has no such layers.
  std::function<Make(int width)> widened = nullptr;
};
const std::vector<ModelRow>& Models();

// NotFound lists all names and the nearest.
absl::StatusOr<const ModelRow*> FindModel(const std::string& name);

}  // namespace psring
