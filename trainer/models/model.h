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
#include "common/ops/optimizer.h"
#include "trainer/data/dataset.h"
#include "trainer/layers/layer.h"
#include "trainer/models/table/model_table.h"

namespace psring {

// A batch on the device.
struct Batch {
  int size = 0;                                           // samples
  std::array<const void*, kMaxSampleInputs> inputs = {};  // by SampleSpec::inputs, each [size][shape]
  const int32_t* labels = nullptr;                        // [size][SampleSpec::labels]
};

struct BatchScore {
  double loss_sum = 0;  // over all predictions
  int64_t correct = 0;
};

// What a pass uses beside its batch and its activations.
struct ModelState {
  ConstSpan weights;
  // ParameterLayout::buffers. Training updates them, unless data is null; evaluation reads them.
  Span buffers = {};
  PassMode mode = PassMode::kTraining;
  SharedStatistics* statistics = nullptr;  // null: each rank normalizes its own batch
  // Of the step and of this batch, if the model has tables. Backward adds to the gradient of the rows.
  TouchedRows* rows = nullptr;
  const BatchLookups* lookups = nullptr;
  // Of the samples of this batch (sampler.h), on the host, until backward has run; null: nothing is dropped.
  const uint64_t* sample_seeds = nullptr;
};

// What forward leaves for backward.
enum class Keep : uint8_t {
  kAll,         // every value
  kUnitInputs,  // of a unit, such as a transformer block, its input: backward computes the rest again
};

// The memory of one micro-batch in flight, for up to `max_batch` samples: activations, their gradients, and
// what layers keep for backward. Created by a model for its own use.
struct Activations {
  int max_batch = 0;
  Keep keep = Keep::kAll;
  Buffer memory = {};
  std::vector<Span> values = {}, gradients = {};  // by value of the network; views of `memory`
  std::vector<std::byte*> kept = {};              // by layer
  std::vector<Activations> replicas = {};         // those of the replicas of data-parallel
};

// Constant: all that changes is in the arguments. One thread at a time, because of the Ops it borrows.
class Model {
 public:
  virtual ~Model() = default;

  virtual const ParameterLayout& parameters() const = 0;

  // By layer: the elements of the gradient that are complete once backward, which begins with the last layer,
  // has passed it. Together they are all elements. A model may count several layers as one.
  virtual std::vector<ReadyRange> CompleteAfterLayers() const = 0;

  // From `seed`, on the host; the same on every machine.
  virtual std::vector<float> InitialWeights(uint64_t seed) const = 0;

  // With less memory for kUnitInputs if the model has several units. Results are the same, bit for bit.
  virtual absl::StatusOr<Activations> NewActivations(int max_batch, Keep keep, Device& device) const = 0;

  // Forward and loss. Adds to *score, on the device, in stream order. Leaves in `activations` what Backward
  // needs.
  virtual absl::Status Forward(const ModelState& state, const Batch& batch, Activations& activations,
                               BatchScore* score, Stream& stream) = 0;

  // Forward without the loss: [batch][labels][classes], of the Ops' activation type. Empty for an empty batch
  // or a model that computes nothing.
  virtual absl::StatusOr<Span> Outputs(const ModelState& state, const Batch& batch, Activations& activations,
                                       Stream& stream) = 0;

  // Called when, in stream order, these elements of the gradient are complete and no later work of this step
  // reads their weights.
  using GradientReady = std::function<void(ReadyRange range)>;

  // Gradients (sums over the batch's predictions) of the last Forward with `activations`, in training mode,
  // into `gradient`.
  // The gradient of the outputs is in the place of the outputs: written by Forward, or by the caller of
  // Outputs. `ready` gets the ranges of CompleteAfterLayers that have elements, those of the last layer
  // first.
  virtual absl::Status Backward(const ModelState& state, const Batch& batch, Activations& activations,
                                Span gradient, Stream& stream, const GradientReady& ready) = 0;
};

// The model's tensors in the order in which backward completes their gradients.
std::vector<int> TensorsByReadiness(const Model& model);

// The parameters without weight decay: biases and the weights of normalizations, which have one dimension.
std::vector<ParameterRange> WithoutDecay(const ParameterLayout& layout);

// ModelRows() with their makers.
const ModelTable& Models();
inline absl::StatusOr<const ModelRow*> FindModel(const std::string& name) {
  return FindModelRow(name, Models());
}
// Makes `row.make` again, for the row's size and this probability of dropout, if the row names a network.
void SetMaker(double dropout, ModelRow& row);

}  // namespace psring
