// A network whose weights and gradients are two flat buffers.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/ops/ops.h"
#include "trainer/data/dataset.h"

namespace psring {

// A batch on the device.
struct Batch {
  int size = 0;                                            // samples
  std::array<const void*, kMostSampleInputs> inputs = {};  // by SampleSpec::inputs, each [size][shape]
  const int32_t* labels = nullptr;                         // [size][SampleSpec::labels]
};

struct BatchScore {
  double loss_sum = 0;  // over all predictions
  int64_t correct = 0;
};

// The memory of one micro-batch in flight, for up to `max_batch` samples: activations, their gradients, and
// what layers keep for backward. Created by a model for its own use.
struct Activations {
  int max_batch = 0;
  Buffer memory = {};
  std::vector<Span> values = {}, gradients = {};  // by value of the network; views of `memory`
  std::vector<std::byte*> kept = {};              // by layer
  std::vector<Activations> replicas = {};         // those of the replicas of dp
};

// Constant: all that changes is in the arguments. One thread at a time, because of the Ops it borrows.
class Model {
 public:
  virtual ~Model() = default;

  virtual const ParameterLayout& parameters() const = 0;

  // From `seed`, on the host; the same on every machine.
  virtual std::vector<float> InitialWeights(uint64_t seed) const = 0;

  virtual absl::StatusOr<Activations> NewActivations(int max_batch, Device& device) const = 0;

  // Forward and loss. Adds to *score, on the device, in stream order. Leaves in `activations` what Backward
  // needs.
  virtual absl::Status Forward(ConstSpan weights, const Batch& batch, Activations& activations,
                               BatchScore* score, Stream& stream) = 0;

  // Forward without the loss: [batch][labels][classes], of the Ops' activation type. Empty for an empty batch
  // or a model that computes nothing.
  virtual absl::StatusOr<Span> Outputs(ConstSpan weights, const Batch& batch, Activations& activations,
                                       Stream& stream) = 0;

  // Called when, in stream order, these elements of the gradient are complete and no later work of this step
  // reads their weights.
  using GradientReady = std::function<void(ReadyRange range)>;

  // Gradients (sums over the batch's predictions) of the last Forward with `activations` into `gradient`.
  // The gradient of the outputs is in the place of the outputs: written by Forward, or by the caller of
  // Outputs. `ready` gets every element once, in ranges of whole tensors, in the same order in every step.
  virtual absl::Status Backward(ConstSpan weights, const Batch& batch, Activations& activations,
                                Span gradient, Stream& stream, const GradientReady& ready) = 0;
};

struct ModelRow {
  const char* name;
  const char* summary;
  double default_lr;        // synchronous modes, momentum 0.9
  double default_async_lr;  // asynchronous modes, momentum 0
  using Make = std::function<absl::StatusOr<std::unique_ptr<Model>>(const SampleSpec& samples, Ops& ops)>;
  Make make;  // `ops` outlives the model
  // The same with `width` neurons in each hidden layer; null: the model has no such layers.
  std::function<Make(int width)> widened = nullptr;
};
const std::vector<ModelRow>& Models();

// NotFound lists all names and the nearest.
absl::StatusOr<const ModelRow*> FindModel(const std::string& name);

}  // namespace psring
