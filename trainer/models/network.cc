#include "trainer/models/network.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/check.h"

namespace psring {
namespace {

bool Overlap(const ReadyRange& a, const ReadyRange& b) {
  return a.first < b.first + b.count && b.first < a.first + a.count;
}

bool Contains(const ReadyRange& range, const ReadyRange& inner) {
  return range.first <= inner.first && inner.first + inner.count <= range.first + range.count;
}

// Where a layer's range of the whole network's elements is in the part.
ReadyRange InPart(const LayoutPart& at, const ReadyRange& range) {
  for (size_t i = 0; i < at.whole.size() && range.count > 0; ++i) {
    if (at.whole[i].first == range.first) return {at.part[i].first, range.count};
  }
  return {};
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
  const size_t layers = layers_.size();
  PSRING_CHECK(places_.back().traits->outputs == size_t{1} * samples_.labels * classes_);
  const auto reads = [](int value) {
    return [value](const LayerPlace& layer) { return std::ranges::count(layer.inputs, value) > 0; };
  };
  for (const LayerPlace& place : places_) {
    if (!place.traits->replaces_x) continue;
    PSRING_CHECK(place.inputs.size() == 1 && place.inputs[0] >= static_cast<int>(samples_.inputs.size()));
    PSRING_CHECK(std::ranges::count_if(places_, reads(place.inputs[0])) == 1);
  }
  for (const LayerRange& unit : units_) {
    PSRING_CHECK(unit.end < layers);  // the gradient of the network's output is in its place
    PSRING_CHECK(!places_[unit.end - 1].traits->replaces_x);  // what is computed again is its input
    const int inner = places_[unit.first].output, output = places_[unit.end - 1].output;
    for (size_t l = unit.end; l < layers; ++l) {
      for (const int value : places_[l].inputs) PSRING_CHECK(value < inner || value >= output);
    }
  }
  return std::unique_ptr<Model>(new Network(std::move(*this), {{0, layers}}, ops));
}

Network::Network(Builder whole, const std::vector<LayerRange>& stages, Ops& ops)
    : whole_(std::move(whole)), ops_(ops) {
  size_t first_value = 0;
  for (const LayerRange& range : stages) {
    Stage stage = StageOf(range);
    stage.first_value = std::exchange(first_value, first_value + stage.values());
    stage.first = layers_.size();
    for (size_t l = range.first; l < range.end; ++l) {
      layers_.push_back({.layer = whole_.layers_[l].get(), .stage = stages_.size()});
    }
    stages_.push_back(std::move(stage));
  }
  PlaceLayers();
}

Network::Stage Network::StageOf(const LayerRange& range) const {
  Stage stage{.whole = range};
  int before = 0;  // values of the network before the stage's
  if (reads_samples(stage)) {
    for (const TensorSpec& input : whole_.samples_.inputs) stage.inputs.push_back(input.count());
  } else {
    before = whole_.places_[range.first - 1].output;  // the only value that crosses the cut
    stage.inputs.push_back(BoundaryElements(range.first));
  }
  for (size_t l = range.first; l < range.end; ++l) {
    LayerPlace& place = stage.places.emplace_back(whole_.places_[l]);
    for (int& value : place.inputs) value -= before;
    place.output -= before;
  }
  // A unit that is cut becomes two: only one value crosses the cut.
  for (const LayerRange& unit : whole_.units_) {
    const size_t first = std::max(unit.first, range.first), end = std::min(unit.end, range.end);
    if (first < end) stage.units.push_back({first - range.first, end - range.first});
  }
  const int inputs = static_cast<int>(stage.inputs.size());
  const StageBounds bounds{.input = reads_samples(stage) ? 0 : stage.inputs[0], .output = !has_loss(stage)};
  stage.plan = PlanGradients(inputs, stage.places, bounds);
  stage.plan_for_weights = PlanGradients(inputs, stage.places, bounds, /*for_weights=*/true);
  return stage;
}

void Network::PlaceLayers() {
  const ParameterLayout& all = whole_.layout_;
  if (is_whole()) layout_ = all;
  const auto is_here = [&](const Tensor& tensor, ReadyRange LayerTraits::*of_layer) {
    return std::ranges::any_of(layers_, [&](const PlacedLayer& layer) {
      return Contains(layer.layer->traits().*of_layer, {tensor.first, tensor.count});
    });
  };
  for (const Tensor& tensor : all.tensors()) {
    if (is_whole() || !is_here(tensor, &LayerTraits::parameters)) continue;
    layout_.Add(tensor.name, tensor.shape, tensor.image, tensor.part);
  }
  for (const Tensor& buffer : all.buffers()) {
    if (is_whole() || !is_here(buffer, &LayerTraits::buffers)) continue;
    layout_.AddBuffer(buffer.name, buffer.shape, all.initial_buffers()[buffer.first]);
  }
  tensors_ = PartOf(all.tensors(), layout_.tensors()).value();
  const LayoutPart buffers = PartOf(all.buffers(), layout_.buffers()).value();
  for (size_t l = 0; l < layers_.size(); ++l) {
    const ReadyRange own = layers_[l].layer->traits().parameters;
    layers_[l].parameters = InPart(tensors_, own);
    layers_[l].buffers = InPart(buffers, layers_[l].layer->traits().buffers);
    layers_[l].completes = own.count > 0;
    for (size_t other = 0; other < layers_.size(); ++other) {
      if (other == l || !Overlap(own, layers_[other].layer->traits().parameters)) continue;
      PSRING_CHECK(layers_[l].layer->traits().early == 0);
      if (other < l) layers_[l].completes = false;
      if (other > l) layers_[l].adds = true;
    }
  }
}

std::vector<ReadyRange> Network::CompleteAfterLayers() const {
  std::vector<ReadyRange> complete(layers());
  for (size_t l = 0; l < complete.size(); ++l) {
    if (layers_[l].completes) complete[l] = layers_[l].parameters;
  }
  return complete;
}

std::vector<size_t> Network::EarlyElements() const {
  std::vector<size_t> early;
  for (const PlacedLayer& layer : layers_) early.push_back(layer.layer->traits().early);
  return early;
}

std::vector<ReadyRange> Network::LayerParameters() const {
  std::vector<ReadyRange> parameters;
  for (const PlacedLayer& layer : layers_) parameters.push_back(layer.parameters);
  return parameters;
}

std::vector<LayerRange> Network::RecomputedUnits() const {
  std::vector<LayerRange> units;
  for (const Stage& stage : stages_) {
    for (const LayerRange& unit : stage.units)
      units.push_back({stage.first + unit.first, stage.first + unit.end});
  }
  return units;
}

std::vector<float> Network::InitialWeights(uint64_t seed) const {
  std::vector<float> weights(layout_.count());
  DrawWeights(seed, [&weights](const ReadyRange& range, const float* values) {
    std::copy_n(values, range.count, weights.data() + range.first);
  });
  return weights;
}

// Layers of other stages are drawn, too, for the random numbers and for tensors that they share.
void Network::DrawWeights(uint64_t seed, const TakeWeights& take) const {
  Random random(seed, /*stream=*/4);
  const auto& layers = whole_.layers_;
  std::vector<std::pair<ReadyRange, std::vector<float>>> shared;  // with later layers
  for (size_t l = 0; l < layers.size(); ++l) {
    const ReadyRange own = layers[l]->traits().parameters;
    std::vector<float> drawn(own.count);
    for (const auto& [range, values] : shared) {
      const size_t from = std::max(range.first, own.first);
      const size_t to = std::min(range.first + range.count, own.first + own.count);
      if (from < to) std::copy_n(values.data() + (from - range.first), to - from, &drawn[from - own.first]);
    }
    layers[l]->Initialize(random, drawn.data());
    for (size_t i = 0; i < tensors_.whole.size(); ++i) {
      const ReadyRange& tensor = tensors_.whole[i];
      if (Contains(own, tensor)) take(tensors_.part[i], drawn.data() + (tensor.first - own.first));
    }
    const bool is_shared =
        std::any_of(layers.begin() + static_cast<std::ptrdiff_t>(l) + 1, layers.end(),
                    [&](const auto& later) { return Overlap(own, later->traits().parameters); });
    if (is_shared) shared.emplace_back(own, std::move(drawn));
  }
}

size_t Network::PieceBytes(int max_batch) const {
  constexpr size_t kAlignment = 64;
  size_t elements = 0;  // of a sample
  for (const PlacedLayer& layer : layers_) elements = std::max(elements, layer.layer->traits().gathered);
  const size_t bytes = elements * static_cast<size_t>(max_batch) * SizeOf(ops_.activations());
  return TensorAxis::kPieces * ((bytes + kAlignment - 1) / kAlignment * kAlignment);
}

size_t Network::ExchangeBytes(int max_batch) const {
  size_t bytes = 0;
  for (const PlacedLayer& layer : layers_) {
    const LayerTraits& traits = layer.layer->traits();
    bytes = std::max({bytes, traits.exchanged_once,
                      traits.exchanged * static_cast<size_t>(max_batch) * SizeOf(ops_.activations())});
  }
  return bytes;
}

double Network::SentBytes(LayerRange stage, int batch, bool recomputes) const {
  const auto sends = [this](size_t l) -> const AxisTraffic& { return layers_[l].layer->traits().sends; };
  double elements = 0, floats = 0;
  for (size_t l = stage.first; l < stage.end; ++l) {
    elements += sends(l).forward + sends(l).backward;
    floats += sends(l).of_batch;
  }
  std::vector<LayerRange> units;
  for (const LayerRange& unit : RecomputedUnits()) {
    const size_t first = std::max(unit.first, stage.first), end = std::min(unit.end, stage.end);
    if (first < end) units.push_back({first, end});
  }
  for (size_t u = 0; recomputes && u + 1 < units.size(); ++u) {
    for (size_t l = units[u].first; l + 1 < units[u].end; ++l) elements += sends(l).forward;
  }
  if (stage.end == layers_.size() && whole_.loss_.has_value())
    floats += whole_.loss_->SentFor(batch * whole_.samples_.labels);
  return batch * elements * static_cast<double>(SizeOf(ops_.activations())) + floats * sizeof(float);
}

std::vector<bool> Network::ExchangingLayers() const {
  std::vector<bool> exchanging;
  for (const PlacedLayer& layer : layers_) exchanging.push_back(layer.layer->traits().exchanged > 0);
  return exchanging;
}

absl::StatusOr<Activations> Network::NewActivations(int max_batch, Keep keep, Device& device) const {
  const DType type = ops_.activations();
  const size_t batch = static_cast<size_t>(max_batch);
  const auto gradients_of = [keep](const Stage& stage) -> const GradientPlan& {
    return keep == Keep::kForWeights ? stage.plan_for_weights : stage.plan;
  };
  PSRING_CHECK(keep != Keep::kForWeights || layout_.tables().empty());
  std::vector<ActivationPlan> plans;
  size_t bytes = 0;
  for (const Stage& stage : stages_) {
    std::vector<size_t> inputs = stage.inputs;
    for (size_t i = 0; reads_samples(stage) && i < inputs.size(); ++i) {
      // The batch contains its inputs; pictures are converted to the type that layers read.
      if (type == DType::kFloat32 || !IsFloat(whole_.samples_.inputs[i].kind)) inputs[i] = 0;
    }
    plans.push_back(PlanActivations(inputs, stage.places, gradients_of(stage).pieces,
                                    keep == Keep::kUnitInputs ? stage.units : std::vector<LayerRange>(),
                                    batch, type));
    bytes += plans.back().bytes;
  }
  Activations made{.max_batch = max_batch, .keep = keep};
  PSRING_ASSIGN_OR_RETURN(made.memory, device.Allocate(bytes));
  auto* memory = static_cast<std::byte*>(made.memory.data());
  for (size_t s = 0; s < plans.size(); ++s) {
    const ActivationPlan& at = plans[s];
    for (size_t v = 0; v < at.values.size(); ++v) {
      const size_t count = batch * stages_[s].ElementsOf(v);
      made.values.push_back(
          at.values[v] == ActivationPlan::kNowhere ? Span{} : Span{memory + at.values[v], count, type});
      const int piece = gradients_of(stages_[s]).piece_of[v];
      if (piece == GradientPlan::kInPlace) {
        made.gradients.push_back(made.values.back());
      } else {
        made.gradients.push_back(
            piece < 0 ? Span{} : Span{memory + at.pieces[static_cast<size_t>(piece)], count, type});
      }
    }
    for (const size_t kept : at.kept) made.kept.push_back(memory + kept);
    memory += at.bytes;
  }
  return made;
}

LayerPass Network::PassOf(size_t l, const ModelState& state, const Batch& batch, Activations& activations,
                          Stream& stream) const {
  const PlacedLayer& layer = layers_[l];
  const Stage& stage = stages_[layer.stage];
  const LayerPlace& place = stage.places[l - stage.first];
  const size_t size = static_cast<size_t>(batch.size);
  const auto of_batch = [&](const std::vector<Span>& all, int value) {
    const size_t v = static_cast<size_t>(value);
    const Span& memory = all[stage.first_value + v];
    return memory.data == nullptr ? Span{} : memory.Slice(0, size * stage.ElementsOf(v));
  };
  const auto own = [](const auto& all, const ReadyRange& range, size_t first = 0) {
    return all.Slice(range.count > 0 ? range.first - first : 0, range.count);
  };
  LayerPass pass{.batch = batch.size,
                 .mode = state.mode,
                 .weights = own(state.weights, layer.parameters, state.weights_first),
                 .buffers = state.buffers.data == nullptr ? Span{} : own(state.buffers, layer.buffers),
                 .statistics = state.statistics,
                 .rows = state.rows,
                 .lookups = state.lookups,
                 .sample_seeds = state.sample_seeds,
                 .y = of_batch(activations.values, place.output),
                 .kept = activations.kept[l],
                 .dy = of_batch(activations.gradients, place.output),
                 .adds = stage.plan.adds[l - stage.first],
                 .adds_gradient = layer.adds,
                 .ops = ops_,
                 .stream = stream};
  for (size_t i = 0; i < place.inputs.size(); ++i) {
    const size_t v = static_cast<size_t>(place.inputs[i]);
    pass.x[i] = of_batch(activations.values, place.inputs[i]);
    if (pass.x[i].data == nullptr && v < stage.inputs.size()) {
      pass.x[i] = {batch.inputs[v], size * stage.inputs[v]};
    }
    pass.dx[i] = of_batch(activations.gradients, place.inputs[i]);
    if (place.traits->replaces_x) pass.replaced = of_batch(activations.values, place.inputs[i]);
  }
  return pass;
}

absl::StatusOr<Span> Network::ForwardUnit(LayerRange unit, const ModelState& state, const Batch& batch,
                                          Activations& activations, Stream& stream) {
  PSRING_CHECK(batch.size <= activations.max_batch);
  if (batch.size == 0) return Span{};  // a rank's share of a short last batch may be empty
  const Stage& first = stages_[0];
  for (size_t i = 0; unit.first == 0 && reads_samples(first) && i < first.inputs.size(); ++i) {
    if (activations.values[i].data == nullptr) continue;
    const size_t count = static_cast<size_t>(batch.size) * first.inputs[i];
    ops_.Convert(ConstSpan(batch.inputs[i], count), activations.values[i].Slice(0, count), stream);
  }
  Span y;
  for (size_t l = unit.first; l < unit.end; ++l) {
    const LayerPass pass = PassOf(l, state, batch, activations, stream);
    PSRING_RETURN_IF_ERROR(layers_[l].layer->Forward(pass));
    y = pass.y;
  }
  return y;
}

absl::Status Network::Loss(const Batch& batch, Activations& activations, BatchScore* score, Stream& stream) {
  PSRING_CHECK(has_loss(stages_.back()));
  if (batch.size == 0) return absl::OkStatus();
  const SampleSpec& samples = whole_.samples_;
  const int predictions = batch.size * samples.labels;
  const Span outputs = activations.values.back().Slice(0, size_t{1} * predictions * whole_.classes_);
  if (whole_.loss_.has_value()) {
    return whole_.loss_->Run(predictions, outputs, batch.labels, &score->loss_sum, &score->correct, stream);
  }
  ops_.families().loss->SoftmaxCrossEntropy(predictions, samples.classes, outputs, batch.labels, outputs,
                                            &score->loss_sum, &score->correct, stream);
  return absl::OkStatus();
}

absl::Status Network::Recompute(size_t l, const ModelState& state, const Batch& batch,
                                Activations& activations, Stream& stream) const {
  // What forward computed of the stage's last unit is still in the units' shared memory.
  const Stage& stage = stages_[layers_[l].stage];
  for (size_t u = 0; u + 1 < stage.units.size(); ++u) {
    if (stage.first + stage.units[u].end != l + 1) continue;
    for (size_t inner = stage.first + stage.units[u].first; inner < l; ++inner) {
      LayerPass pass = PassOf(inner, state, batch, activations, stream);
      pass.mode = PassMode::kRecompute;
      PSRING_RETURN_IF_ERROR(layers_[inner].layer->Forward(pass));
    }
  }
  return absl::OkStatus();
}

absl::Status Network::BackwardUnit(LayerRange unit, const ModelState& state, const Batch& batch,
                                   Activations& activations, Span gradient, Stream& stream) {
  const bool of_input = state.part != BackwardPart::kWeight, of_weight = state.part != BackwardPart::kInput;
  PSRING_CHECK((of_input && of_weight) || activations.keep == Keep::kForWeights);
  for (size_t l = unit.end; l-- > unit.first;) {
    const LayerTraits& traits = layers_[l].layer->traits();
    const auto of_gradient = [&](const ReadyRange& range) {
      return gradient.Slice(range.count > 0 ? range.first - state.gradient_first : 0, range.count);
    };
    if (batch.size == 0) {
      const Span zeros = of_gradient(WrittenBy(state.part, layers_[l].parameters, traits.early));
      if (layers_[l].completes) stream.Zero(zeros.data, zeros.bytes());
      continue;
    }
    if (activations.keep == Keep::kUnitInputs) {
      PSRING_RETURN_IF_ERROR(Recompute(l, state, batch, activations, stream));
    }
    LayerPass pass = PassOf(l, state, batch, activations, stream);
    pass.gradient = of_gradient(layers_[l].parameters);
    if (of_input) PSRING_RETURN_IF_ERROR(layers_[l].layer->BackwardInput(pass));
    for (size_t i = 0; of_input && i < traits.inputs.size(); ++i) {
      const Span& dx = pass.dx[i];  // of a layer that needs its dy later: not in the same memory
      if (traits.inputs[i] != InputGradient::kPassed || dx.data == nullptr) continue;
      if (dx.data != pass.dy.data) stream.Copy(dx.data, pass.dy.data, dx.bytes());
    }
    if (of_weight) PSRING_RETURN_IF_ERROR(layers_[l].layer->BackwardWeight(pass));
  }
  return absl::OkStatus();
}

std::vector<size_t> Network::CutPoints() const {
  if (!is_whole() || !layout_.tables().empty()) return {};
  std::vector<size_t> points;
  int first_read = std::numeric_limits<int>::max();  // of all values, by layer `l` or later ones
  for (size_t l = layers() - 1; l > 0; --l) {
    for (const int value : whole_.places_[l].inputs) first_read = std::min(first_read, value);
    if (first_read == whole_.places_[l - 1].output) points.push_back(l);
  }
  std::ranges::reverse(points);
  return points;
}

absl::StatusOr<std::unique_ptr<Model>> Network::TakeStages(const std::vector<LayerRange>& stages) && {
  if (!is_whole()) return absl::InvalidArgumentError("the model is cut already");
  PSRING_RETURN_IF_ERROR(CheckStages(*this, stages));
  return std::unique_ptr<Model>(new Network(std::move(whole_), stages, ops_));
}

StageEdges Network::EdgesOf(size_t stage, Activations& activations, int size) const {
  const Stage& of = stages_[stage];
  const auto edge = [&](const std::vector<Span>& all, size_t value) {
    return all[of.first_value + value].Slice(0, static_cast<size_t>(size) * of.ElementsOf(value));
  };
  StageEdges edges;
  if (size > 0 && !reads_samples(of)) {
    edges.input = edge(activations.values, 0);
    edges.input_gradient = edge(activations.gradients, 0);
  }
  if (size > 0 && !has_loss(of)) {
    edges.output = edge(activations.values, of.values() - 1);
    edges.output_gradient = edge(activations.gradients, of.values() - 1);
  }
  return edges;
}

}  // namespace psring
