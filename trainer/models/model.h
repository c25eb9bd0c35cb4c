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
  const uint8_t* labels = nullptr;
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

  // Forward and loss. Adds to *score, on the device, when the stream gets there. Keeps what Backward needs.
  virtual void Forward(ConstSpan weights, const Batch& batch, BatchScore* score, Stream& stream) = 0;

  // The first part of Forward: all but the loss. [batch][classes], of the Ops' activation type; empty where
  // the batch is, or where the model computes nothing.
  virtual ConstSpan Outputs(ConstSpan weights, const Batch& batch, Stream& stream) = 0;
  // Where Backward reads the gradient of those: Forward writes it, or whoever called Outputs instead.
  virtual Span OutputGradient(int batch) = 0;

  // Called when the work is enqueued from which on these elements of the gradient are complete and no later
  // work of this step reads those weights.
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
  // The same with `width` neurons in each hidden layer; null where there is no such number.
  std::function<Make(int width)> widened = nullptr;
};
const std::vector<ModelRow>& Models();

// NotFound names the nearest, and all there are.
absl::StatusOr<const ModelRow*> FindModel(const std::string& name);

}  // namespace psring
