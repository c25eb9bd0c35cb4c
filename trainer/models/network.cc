#include "trainer/models/network.h"

#include <utility>

#include "common/base/check.h"

namespace psring {
namespace {

constexpr size_t kAlignment = 64;
size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool Overlap(const ReadyRange& a, const ReadyRange& b) {
  return a.first < b.first + b.count && b.first < a.first + a.count;
}

}  // namespace

int Network::Builder::Add(std::unique_ptr<Layer> layer, std::vector<int> inputs) {
  const int output = static_cast<int>(samples_.inputs.size() + layers_.size());
  PSRING_CHECK(inputs.size() == layer->traits().inputs.size() && inputs.size() <= kMostInputs);
  for (const int value : inputs) PSRING_CHECK(value >= 0 && value < output);
  places_.push_back({.inputs = std::move(inputs), .output = output, .traits = &layer->traits()});
  layers_.push_back(std::move(layer));
  return output;
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

absl::StatusOr<Activations> Network::NewActivations(int max_batch, Device& device) const {
  const DType type = ops_.activations();
  const size_t inputs = parts_.samples_.inputs.size(), values = inputs + parts_.layers_.size();
  const size_t batch = static_cast<size_t>(max_batch);
  Activations made{.max_batch = max_batch};
  std::vector<size_t> value_at(values), piece_at, kept_at;
  size_t bytes = 0;
  const auto place = [&bytes](size_t count) { return std::exchange(bytes, bytes + Aligned(count)); };
  for (size_t v = 0; v < values; ++v) {
    // The batch contains its inputs; pictures are converted to the type that layers read.
    const bool stored =
        v >= inputs || (type != DType::kFloat32 && parts_.samples_.inputs[v].kind == TensorKind::kPicture);
    value_at[v] = stored ? place(batch * ElementsOf(static_cast<int>(v)) * SizeOf(type)) : SIZE_MAX;
  }
  for (const size_t elements : plan_.pieces) piece_at.push_back(place(batch * elements * SizeOf(type)));
  for (const LayerPlace& layer : parts_.places_)
    kept_at.push_back(place(layer.traits->kept_once + batch * layer.traits->kept_bytes));

  PSRING_ASSIGN_OR_RETURN(made.memory, device.Allocate(bytes));
  auto* const memory = static_cast<std::byte*>(made.memory.data());
  for (size_t v = 0; v < values; ++v) {
    const size_t count = batch * ElementsOf(static_cast<int>(v));
    made.values.push_back(value_at[v] == SIZE_MAX ? Span{} : Span{memory + value_at[v], count, type});
    const int piece = plan_.piece_of[v];
    if (piece == GradientPlan::kInPlace) {
      made.gradients.push_back(made.values.back());
    } else {
      made.gradients.push_back(piece < 0 ? Span{}
                                         : Span{memory + piece_at[static_cast<size_t>(piece)], count, type});
    }
  }
  for (const size_t at : kept_at) made.kept.push_back(memory + at);
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

absl::StatusOr<Span> Network::Outputs(const ModelState& state, const Batch& batch, Activations& activations,
                                      Stream& stream) {
  PSRING_CHECK(batch.size <= activations.max_batch);
  if (batch.size == 0) return Span{};  // a rank's share of a short last batch may be empty
  for (size_t i = 0; i < parts_.samples_.inputs.size(); ++i) {
    if (activations.values[i].data == nullptr) continue;
    const size_t count = static_cast<size_t>(batch.size) * ElementsOf(static_cast<int>(i));
    ops_.Convert(ConstSpan(batch.inputs[i], count), activations.values[i].Slice(0, count), stream);
  }
  Span y;
  for (size_t l = 0; l < parts_.layers_.size(); ++l) {
    const LayerPass pass = PassOf(l, state, batch, activations, stream);
    PSRING_RETURN_IF_ERROR(parts_.layers_[l]->Forward(pass));
    y = pass.y;
  }
  return y;
}

absl::Status Network::Forward(const ModelState& state, const Batch& batch, Activations& activations,
                              BatchScore* score, Stream& stream) {
  PSRING_ASSIGN_OR_RETURN(const Span outputs, Outputs(state, batch, activations, stream));
  if (batch.size == 0) return absl::OkStatus();
  ops_.families().loss->SoftmaxCrossEntropy(batch.size * parts_.samples_.labels, parts_.samples_.classes,
                                            outputs, batch.labels, outputs, &score->loss_sum, &score->correct,
                                            stream);
  return absl::OkStatus();
}

absl::Status Network::Backward(const ModelState& state, const Batch& batch, Activations& activations,
                               Span gradient, Stream& stream, const GradientReady& ready) {
  if (batch.size == 0) {
    stream.Zero(gradient.data, gradient.bytes());
    ready({0, gradient.count});
    return absl::OkStatus();
  }
  for (size_t l = parts_.layers_.size(); l-- > 0;) {
    const ReadyRange own = parts_.places_[l].traits->parameters;
    LayerPass pass = PassOf(l, state, batch, activations, stream);
    pass.gradient = gradient.Slice(own.first, own.count);
    PSRING_RETURN_IF_ERROR(parts_.layers_[l]->BackwardInput(pass));
    PSRING_RETURN_IF_ERROR(parts_.layers_[l]->BackwardWeight(pass));
    if (completes_[l]) ready(own);
  }
  return absl::OkStatus();
}

}  // namespace psring
