#include "trainer/models/network.h"

#include <utility>

#include "common/base/check.h"

namespace psring {
namespace {

bool Overlap(const ReadyRange& a, const ReadyRange& b) {
  return a.first < b.first + b.count && b.first < a.first + a.count;
}

}  // namespace

int Network::Builder::Add(std::unique_ptr<Layer> layer, std::vector<int> inputs) {
  const int output = static_cast<int>(samples_.inputs.size() + layers_.size());
  PSRING_CHECK(inputs.size() == layer->traits().inputs.size() && inputs.size() <= kMaxInputs);
  for (const int value : inputs) PSRING_CHECK(value >= 0 && value < output);
  places_.push_back({.inputs = std::move(inputs), .output = output, .traits = &layer->traits()});
  layers_.push_back(std::move(layer));
  return output;
}

void Network::Builder::AddUnit(const std::function<void()>& add) {
  const size_t first = layers_.size();
  add();
  PSRING_CHECK(first < layers_.size() && (units_.empty() || units_.back().end <= first));
  units_.push_back({.first = first, .end = layers_.size()});
}

std::unique_ptr<Model> Network::Builder::Build(Ops& ops) {
  return std::unique_ptr<Model>(new Network(std::move(*this), ops));
}

Network::Network(Builder parts, Ops& ops)
    : parts_(std::move(parts)),
      ops_(ops),
      plan_(PlanGradients(static_cast<int>(parts_.samples_.inputs.size()), parts_.places_)) {
  const size_t layers = parts_.layers_.size();
  PSRING_CHECK(parts_.places_.back().traits->outputs ==
               size_t{1} * parts_.samples_.labels * parts_.samples_.classes);
  for (const Unit& unit : parts_.units_) {
    PSRING_CHECK(unit.end < layers);  // the gradient of the network's output is in its place
    const int inner = parts_.places_[unit.first].output, output = parts_.places_[unit.end - 1].output;
    for (size_t l = unit.end; l < layers; ++l) {
      for (const int value : parts_.places_[l].inputs) PSRING_CHECK(value < inner || value >= output);
    }
  }
  completes_.resize(layers);
  adds_.resize(layers);
  for (size_t l = 0; l < layers; ++l) {
    const ReadyRange own = parts_.places_[l].traits->parameters;
    completes_[l] = own.count > 0;
    for (size_t other = 0; other < layers; ++other) {
      if (other == l || !Overlap(own, parts_.places_[other].traits->parameters)) continue;
      if (other < l) completes_[l] = false;
      if (other > l) adds_[l] = true;
    }
  }
}

std::vector<ReadyRange> Network::CompleteAfterLayers() const {
  std::vector<ReadyRange> complete(layers());
  for (size_t l = 0; l < complete.size(); ++l) {
    if (completes_[l]) complete[l] = parts_.places_[l].traits->parameters;
  }
  return complete;
}

std::vector<float> Network::InitialWeights(uint64_t seed) const {
  std::vector<float> weights(parts_.layout_.count());
  Random random(seed, /*stream=*/4);
  for (const auto& layer : parts_.layers_) layer->Initialize(random, weights);
  return weights;
}

size_t Network::ElementsOf(int value) const {
  const size_t inputs = parts_.samples_.inputs.size(), v = static_cast<size_t>(value);
  return v < inputs ? parts_.samples_.inputs[v].count() : parts_.places_[v - inputs].traits->outputs;
}

absl::StatusOr<Activations> Network::NewActivations(int max_batch, Keep keep, Device& device) const {
  const DType type = ops_.activations();
  const size_t batch = static_cast<size_t>(max_batch);
  std::vector<size_t> inputs;
  for (const TensorSpec& input : parts_.samples_.inputs) {
    // The batch contains its inputs; pictures are converted to the type that layers read.
    inputs.push_back(type != DType::kFloat32 && IsFloat(input.kind) ? input.count() : 0);
  }
  const ActivationPlan at =
      PlanActivations(inputs, parts_.places_, plan_.pieces,
                      keep == Keep::kUnitInputs ? parts_.units_ : std::vector<Unit>(), batch, type);
  Activations made{.max_batch = max_batch, .keep = keep};
  PSRING_ASSIGN_OR_RETURN(made.memory, device.Allocate(at.bytes));
  auto* const memory = static_cast<std::byte*>(made.memory.data());
  for (size_t v = 0; v < at.values.size(); ++v) {
    const size_t count = batch * ElementsOf(static_cast<int>(v));
    made.values.push_back(
        at.values[v] == ActivationPlan::kNowhere ? Span{} : Span{memory + at.values[v], count, type});
    const int piece = plan_.piece_of[v];
    if (piece == GradientPlan::kInPlace) {
      made.gradients.push_back(made.values.back());
    } else {
      made.gradients.push_back(piece < 0 ? Span{}
                                         : Span{memory + at.pieces[static_cast<size_t>(piece)], count, type});
    }
  }
  for (const size_t kept : at.kept) made.kept.push_back(memory + kept);
  return made;
}

LayerPass Network::PassOf(size_t l, const ModelState& state, const Batch& batch, Activations& activations,
                          Stream& stream) const {
  const LayerPlace& layer = parts_.places_[l];
  const size_t size = static_cast<size_t>(batch.size), inputs = parts_.samples_.inputs.size();
  const auto first = [&](const Span& all, int value) {
    return all.data == nullptr ? Span{} : all.Slice(0, size * ElementsOf(value));
  };
  const auto own = [](const auto& all, const ReadyRange& range) {
    return all.Slice(range.first, range.count);
  };
  LayerPass pass{
      .batch = batch.size,
      .mode = state.mode,
      .weights = own(state.weights, layer.traits->parameters),
      .buffers = state.buffers.data == nullptr ? Span{} : own(state.buffers, layer.traits->buffers),
      .statistics = state.statistics,
      .rows = state.rows,
      .lookups = state.lookups,
      .sample_seeds = state.sample_seeds,
      .y = first(activations.values[static_cast<size_t>(layer.output)], layer.output),
      .kept = activations.kept[l],
      .dy = first(activations.gradients[static_cast<size_t>(layer.output)], layer.output),
      .adds = plan_.adds[l],
      .adds_gradient = adds_[l],
      .ops = ops_,
      .stream = stream};
  for (size_t i = 0; i < layer.inputs.size(); ++i) {
    const int value = layer.inputs[i];
    const size_t v = static_cast<size_t>(value);
    pass.x[i] = first(activations.values[v], value);
    if (pass.x[i].data == nullptr && v < inputs) pass.x[i] = {batch.inputs[v], size * ElementsOf(value)};
    pass.dx[i] = first(activations.gradients[v], value);
  }
  return pass;
}

absl::StatusOr<Span> Network::ForwardUnit(LayerRange unit, const ModelState& state, const Batch& batch,
                                          Activations& activations, Stream& stream) {
  PSRING_CHECK(batch.size <= activations.max_batch);
  if (batch.size == 0) return Span{};  // a rank's share of a short last batch may be empty
  for (size_t i = 0; unit.first == 0 && i < parts_.samples_.inputs.size(); ++i) {
    if (activations.values[i].data == nullptr) continue;
    const size_t count = static_cast<size_t>(batch.size) * ElementsOf(static_cast<int>(i));
    ops_.Convert(ConstSpan(batch.inputs[i], count), activations.values[i].Slice(0, count), stream);
  }
  Span y;
  for (size_t l = unit.first; l < unit.end; ++l) {
    const LayerPass pass = PassOf(l, state, batch, activations, stream);
    PSRING_RETURN_IF_ERROR(parts_.layers_[l]->Forward(pass));
    y = pass.y;
  }
  return y;
}

absl::Status Network::Loss(const Batch& batch, Activations& activations, BatchScore* score, Stream& stream) {
  if (batch.size == 0) return absl::OkStatus();
  const int last = parts_.places_.back().output;
  const Span outputs = activations.values[static_cast<size_t>(last)].Slice(
      0, static_cast<size_t>(batch.size) * ElementsOf(last));
  ops_.families().loss->SoftmaxCrossEntropy(batch.size * parts_.samples_.labels, parts_.samples_.classes,
                                            outputs, batch.labels, outputs, &score->loss_sum, &score->correct,
                                            stream);
  return absl::OkStatus();
}

absl::Status Network::Recompute(size_t l, const ModelState& state, const Batch& batch,
                                Activations& activations, Stream& stream) const {
  // What forward computed of the last unit is still in the units' shared memory.
  for (size_t u = 0; u + 1 < parts_.units_.size(); ++u) {
    if (parts_.units_[u].end != l + 1) continue;
    for (size_t inner = parts_.units_[u].first; inner < l; ++inner) {
      LayerPass pass = PassOf(inner, state, batch, activations, stream);
      pass.mode = PassMode::kRecompute;
      PSRING_RETURN_IF_ERROR(parts_.layers_[inner]->Forward(pass));
    }
  }
  return absl::OkStatus();
}

absl::Status Network::BackwardUnit(LayerRange unit, const ModelState& state, const Batch& batch,
                                   Activations& activations, Span gradient, Stream& stream) {
  for (size_t l = unit.end; l-- > unit.first;) {
    const ReadyRange own = parts_.places_[l].traits->parameters;
    const Span part = gradient.Slice(own.first, own.count);
    if (batch.size == 0) {
      if (completes_[l]) stream.Zero(part.data, part.bytes());
      continue;
    }
    if (activations.keep == Keep::kUnitInputs) {
      PSRING_RETURN_IF_ERROR(Recompute(l, state, batch, activations, stream));
    }
    LayerPass pass = PassOf(l, state, batch, activations, stream);
    pass.gradient = part;
    PSRING_RETURN_IF_ERROR(parts_.layers_[l]->BackwardInput(pass));
    PSRING_RETURN_IF_ERROR(parts_.layers_[l]->BackwardWeight(pass));
  }
  return absl::OkStatus();
}

}  // namespace psring
