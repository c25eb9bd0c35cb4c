// A network whose weights and gradients are two flat buffers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/ops/ops.h"
#include "common/ops/optimizer.h"
#include "trainer/data/dataset.h"
#include "trainer/layers/layer.h"
#include "trainer/models/table/model_table.h"

namespace psring {

struct SequencePlace;
struct TensorPlace;

struct BatchScore {
  double loss_sum = 0;  // over all predictions
  int64_t correct = 0;
};

// What backward of a unit computes: the gradient of its input and those elements of the weights' gradient
// that come with it, or the rest of that gradient, which may follow much later.
enum class BackwardPart : uint8_t { kBoth, kInput, kWeight };

// What a pass uses beside its batch and its activations.
struct ModelState {
  ConstSpan weights;
  // The elements of the flat buffers with which `weights` and the gradient of BackwardUnit begin: above 0 if
  // they have only the parameters of some layers.
  size_t weights_first = 0, gradient_first = 0;
  // ParameterLayout::buffers. Training updates them, unless data is null; evaluation reads them.
  Span buffers = {};
  PassMode mode = PassMode::kTraining;
  SharedStatistics* statistics = nullptr;  // null: each rank normalizes its own batch
  // Of the step and of this batch, if the model has tables. Backward adds to the gradient of the rows.
  TouchedRows* rows = nullptr;
  const BatchLookups* lookups = nullptr;
  // Of the samples of this batch (sampler.h), on the host, until backward has run; null: nothing is dropped.
  const uint64_t* sample_seeds = nullptr;
  BackwardPart part = BackwardPart::kBoth;  // else of activations with Keep::kForWeights
  // The unit may have waited for weights that were gathered, or for memory: what a timer replaces begins now.
  bool after_wait = false;
};

// What forward leaves for backward.
enum class Keep : uint8_t {
  kAll,         // every value
  kUnitInputs,  // of a unit, such as a transformer block, its input: backward computes the rest again
  kForWeights,  // every value; and backward leaves what BackwardPart::kWeight needs. Not with tables
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

  size_t bytes() const { return memory.bytes(); }  // without the replicas'
};

// What a stage of a pipeline exchanges with its neighbours of the samples of one batch: views of its
// Activations, of the Ops' activation type, [batch][BoundaryElements]. The two gradients may be the same
// memory, which keeps the gradient of the input until the next output_gradient is written.
struct StageEdges {
  Span input, input_gradient;    // data null: the stage reads the samples
  Span output, output_gradient;  // data null: the stage ends with the loss
};

// Takes elements of the weights, from `range.first` on.
using TakeWeights = std::function<void(const ReadyRange& range, const float* values)>;

// Layers that are computed in order: forward from the first to the last, then the loss, then backward.
// Constant: all that changes is in the arguments. One thread at a time, because of the Ops it borrows.
class Model {
 public:
  virtual ~Model() = default;

  virtual const ParameterLayout& parameters() const = 0;

  virtual size_t layers() const = 0;  // at least 1; a model may count several as one
  // By layer: the elements of the gradient that are complete, and whose weights no later work of this step
  // reads, once backward has passed the layer. Each consists of whole tensors; together they are all
  // elements.
  virtual std::vector<ReadyRange> CompleteAfterLayers() const = 0;
  // By layer: how many of these elements, the last ones, BackwardPart::kInput writes, such as biases.
  virtual std::vector<size_t> EarlyElements() const { return std::vector<size_t>(layers()); }

  // By layer: the parameters that it uses; several layers may share some.
  virtual std::vector<ReadyRange> LayerParameters() const { return CompleteAfterLayers(); }
  // The layers that Keep::kUnitInputs computes again together.
  virtual std::vector<LayerRange> RecomputedUnits() const { return {}; }

  // From `seed`, on the host; the same on every machine.
  virtual std::vector<float> InitialWeights(uint64_t seed) const = 0;
  // The same weights without memory for all of them: layer by layer, those that layers share several times.
  // Padding is left out.
  virtual void DrawWeights(uint64_t seed, const TakeWeights& take) const {
    const std::vector<float> all = InitialWeights(seed);
    take({0, all.size()}, all.data());
  }

  // Of the pieces of a TensorAxis (TensorAxis::Reserve) for batches up to this size; 0: it needs none.
  virtual size_t PieceBytes(int /*max_batch*/) const { return 0; }
  // The same of a SequenceAxis.
  virtual size_t ExchangeBytes(int /*max_batch*/) const { return 0; }
  // The bytes that forward, loss and backward of a batch send over these axes, of a stage with these layers
  // of the whole model: on average over an axis' ranks. `recomputes`: of Keep::kUnitInputs.
  virtual double SentBytes(LayerRange /*stage*/, int /*batch*/, bool /*recomputes*/) const { return 0; }
  // By layer: whether ranks that divide sequences exchange something in it, as in attention, where a position
  // needs those before it.
  virtual std::vector<bool> ExchangingLayers() const { return std::vector<bool>(layers()); }
  // With less memory for kUnitInputs if the model has several units. Results are the same, bit for bit.
  virtual absl::StatusOr<Activations> NewActivations(int max_batch, Keep keep, Device& device) const = 0;

  // Forward of these layers, those before them computed. Leaves in `activations` what BackwardUnit needs.
  // Returns the output of the last one. Empty for an empty batch or a model that computes nothing.
  virtual absl::StatusOr<Span> ForwardUnit(LayerRange unit, const ModelState& state, const Batch& batch,
                                           Activations& activations, Stream& stream) = 0;

  // After the forward of all layers: adds to *score, on the device, in stream order. The gradient of the
  // outputs takes the place of the outputs.
  virtual absl::Status Loss(const Batch& batch, Activations& activations, BatchScore* score,
                            Stream& stream) = 0;

  // Backward of these layers after that of later ones, in training mode: the gradients (sums over the batch's
  // predictions) of the last forward with `activations`, into their parts of `gradient`. The gradient of an
  // empty batch is 0. If state.part is kWeight, the same call with kInput came before, and no forward since.
  virtual absl::Status BackwardUnit(LayerRange unit, const ModelState& state, const Batch& batch,
                                    Activations& activations, Span gradient, Stream& stream) = 0;

  // For pipelines. The layers before which the model can be cut, increasing: one value of the layers before
  // is read there or later, and nothing of the samples. Empty: the model cannot be cut.
  virtual std::vector<size_t> CutPoints() const { return {}; }
  // Elements per sample of the value that crosses the boundary before this layer, one of CutPoints().
  virtual size_t BoundaryElements(size_t /*layer*/) const { return 0; }
  // The layers of `stages`, which are increasing and disjoint and begin and end at a cut point, 0 or
  // layers(), as a model of their own, which cannot be cut again; this one has lost its layers. They are
  // numbered from 0 in the order of `stages`. Their parameters and buffers keep their names, order of
  // declaration and initial bits. A tensor that several stages share, as the first and the last one of a
  // transformer do, is in each of their models; backward gives each its own part of the gradient. Stages
  // share no activations, so those of one Activations may belong to different batches. InvalidArgument names
  // the cut points.
  virtual absl::StatusOr<std::unique_ptr<Model>> TakeStages(const std::vector<LayerRange>& stages) &&;
  // Of a stage, an index into the argument of TakeStages, and `size` samples; all data is null for an
  // empty batch, or a model that is not cut. `input` is filled before ForwardUnit of the stage's first layer,
  // `output_gradient` before BackwardUnit of its last one, which leaves `output` as it is; `input_gradient`
  // is complete after BackwardUnit of its first layer. Loss is only for a model that has the last layer.
  virtual StageEdges EdgesOf(size_t /*stage*/, Activations&, int /*size*/) const { return {}; }

  // The same of all layers. Outputs: [batch][labels][classes], of the Ops' activation type.
  absl::StatusOr<Span> Outputs(const ModelState& state, const Batch& batch, Activations& activations,
                               Stream& stream) {
    return ForwardUnit({0, layers()}, state, batch, activations, stream);
  }
  // With the loss.
  absl::Status Forward(const ModelState& state, const Batch& batch, Activations& activations,
                       BatchScore* score, Stream& stream) {
    PSRING_RETURN_IF_ERROR(Outputs(state, batch, activations, stream).status());
    return Loss(batch, activations, score, stream);
  }
  absl::Status Backward(const ModelState& state, const Batch& batch, Activations& activations, Span gradient,
                        Stream& stream) {
    return BackwardUnit({0, layers()}, state, batch, activations, gradient, stream);
  }
};

// Of a layer's elements of CompleteAfterLayers(), with its EarlyElements(): those that `part` writes.
inline ReadyRange WrittenBy(BackwardPart part, const ReadyRange& complete, size_t early) {
  const size_t late = complete.count - early;
  if (part == BackwardPart::kInput) return {complete.first + late, early};
  return {complete.first, part == BackwardPart::kWeight ? late : complete.count};
}

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
// Makes the part of `row`'s network that a rank has if several divide its matrices or sequences.
// InvalidArgument: it cannot be divided so.
absl::StatusOr<ModelRow::Make> MakerOfPart(const ModelRow& row, double dropout, const TensorPlace& place,
                                           const SequencePlace& sequence);
absl::StatusOr<ModelRow::Make> MakerOfPart(const ModelRow& row, double dropout, const TensorPlace& place);

}  // namespace psring
