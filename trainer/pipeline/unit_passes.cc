#include "trainer/pipeline/unit_passes.h"

#include <algorithm>
#include <set>

#include "common/base/check.h"

namespace psring {
namespace {

// The elements of adjacent buckets.
ReadyRange ElementsOf(const std::vector<Bucket>& buckets, const BucketRange& range) {
  const Bucket &first = buckets[range.first], &last = buckets[range.second - 1];
  return {first.first, last.first + last.count - first.first};
}

bool UsesWeights(StepKind kind) {
  return kind == StepKind::kForward || kind == StepKind::kBackward || kind == StepKind::kBackwardInput;
}

}  // namespace

size_t UnitPasses::AsideElements(const Model& model, const std::vector<Bucket>& buckets,
                                 const std::vector<bool>& whole, int micro_batches, bool divides_backward) {
  constexpr size_t kAlignment = ParameterLayout::kAlignment;
  size_t most = 0, early = 0;
  for (const BucketRange& range : BucketsOfLayers(model.LayerParameters(), buckets)) {
    if (range.first == range.second) continue;
    const bool adds = micro_batches > 1 && whole[range.first];
    if (adds || divides_backward) most = std::max(most, ElementsOf(buckets, range).count);
  }
  for (const size_t of_layer : model.EarlyElements()) early += divides_backward ? of_layer : 0;
  return (most + kAlignment - 1) / kAlignment * kAlignment + early;
}

UnitPasses::UnitPasses(const Parts& parts, const std::vector<LayerRange>& stages)
    : parts_(parts),
      complete_(parts.model.CompleteAfterLayers()),
      early_(parts.model.EarlyElements()),
      units_(PlanUnits(complete_, parts.buckets, stages)) {
  PlanRuns();
  if (!parts_.divides_backward || !in_blocks()) return;
  size_t at = parts_.aside.count;
  for (size_t l = early_.size(); l-- > 0;) {
    at -= early_[l];
    early_sums_.push_back(parts_.aside.Slice(at, early_[l]));
  }
  std::ranges::reverse(early_sums_);
  has_early_.resize(early_.size());
}

void UnitPasses::PlanRuns() {
  std::vector<BucketRange> of_layers(complete_.size());
  if (in_blocks()) of_layers = BucketsOfLayers(parts_.model.LayerParameters(), parts_.buckets);
  const auto is_empty = [](const BucketRange& range) { return range.first == range.second; };
  for (const LayerRange& unit : units_.layers) {
    std::vector<LayerRun>& runs = runs_.emplace_back();
    for (size_t l = unit.first; l < unit.end; ++l) {
      const BucketRange& own = of_layers[l];
      const bool joins =
          !runs.empty() && (is_empty(own) || is_empty(runs.back().buckets) || runs.back().buckets == own);
      if (!joins) runs.push_back({.layers = {l, l}});
      runs.back().layers.end = l + 1;
      if (!is_empty(own)) runs.back().buckets = own;
    }
  }
}

std::vector<bool> UnitPasses::kept() const {
  if (!gathers()) return {};
  return UsedBesideOthers(units_, BucketsOfLayers(parts_.model.LayerParameters(), parts_.buckets),
                          parts_.buckets.size());
}

std::vector<size_t> UnitPasses::BucketsOf(size_t unit) const {
  std::vector<size_t> buckets;
  for (const LayerRun& run : runs_[unit]) {
    for (size_t bucket = run.buckets.first; bucket < run.buckets.second; ++bucket) {
      if (std::ranges::find(buckets, bucket) == buckets.end()) buckets.push_back(bucket);
    }
  }
  return buckets;
}

absl::Status UnitPasses::Unshard(size_t unit, const Event& free) {
  for (const size_t bucket : BucketsOf(unit)) {
    PSRING_RETURN_IF_ERROR(memory()->Unshard(static_cast<int>(bucket), free));
  }
  return absl::OkStatus();
}

// Their blocks follow one another.
template <typename BlockOf>
Span UnitPasses::Join(const BucketRange& buckets, const BlockOf& block_of) {
  Span all = block_of(buckets.first);
  for (size_t bucket = buckets.first + 1; bucket < buckets.second; ++bucket) {
    const Span next = block_of(bucket);
    PSRING_CHECK(next.data == all.Slice(all.count, 0).data);
    all.count += next.count;
  }
  return all;
}

void UnitPasses::NoteWait(const ModelState& state, bool begins) const {
  if (parts_.on_wait != nullptr && state.mode == PassMode::kTraining) parts_.on_wait(begins);
}

ModelState UnitPasses::StateOf(const LayerRun& run, const ModelState& state) {
  ModelState own = state;
  own.after_wait = in_blocks();
  if (!gathers()) return own;
  NoteWait(state, /*begins=*/true);
  if (run.has_buckets()) {
    own.weights =
        Join(run.buckets, [this](size_t bucket) { return memory()->UseWeights(static_cast<int>(bucket)); });
    own.weights_first = ElementsOf(parts_.buckets, run.buckets).first;
  }
  NoteWait(state, /*begins=*/false);
  return own;
}

absl::Status UnitPasses::Forward(size_t unit, const Pass& pass) {
  for (const LayerRun& run : runs_[unit]) {
    PSRING_RETURN_IF_ERROR(
        parts_.model
            .ForwardUnit(run.layers, StateOf(run, pass.state), pass.batch, pass.activations, parts_.compute)
            .status());
  }
  return absl::OkStatus();
}

absl::Status UnitPasses::Backward(size_t unit, const Pass& pass, Span flat) {
  const std::vector<LayerRun>& runs = runs_[unit];
  for (size_t r = runs.size(); r-- > 0;) {
    const LayerRun& run = runs[r];
    const ModelState state = StateOf(run, pass.state);
    if (run.has_buckets()) {
      PSRING_RETURN_IF_ERROR(BackwardInBlocks(run, state, pass));
    } else {
      PSRING_RETURN_IF_ERROR(
          parts_.model.BackwardUnit(run.layers, state, pass.batch, pass.activations, flat, parts_.compute));
    }
  }
  return absl::OkStatus();
}

absl::Status UnitPasses::BackwardInBlocks(const LayerRun& run, ModelState state, const Pass& pass) {
  const ReadyRange elements = ElementsOf(parts_.buckets, run.buckets);
  state.gradient_first = elements.first;
  const auto part_of = [&](const Span& all, const ReadyRange& range) {
    return all.Slice(range.first - elements.first, range.count);
  };
  const bool of_input = state.part == BackwardPart::kInput;
  const bool is_whole = parts_.shards != nullptr && parts_.shards->whole[run.buckets.first];
  const bool adds = !of_input && is_whole && begun_.contains(run.buckets.first);
  const Span gradient = of_input ? Span() : BeginGradient(run, state);
  const bool is_aside = of_input || adds;
  const Span to = is_aside ? parts_.aside.Slice(0, elements.count) : gradient;
  for (size_t l = run.layers.first; is_aside && l < run.layers.end; ++l) {
    const ReadyRange written = WrittenBy(state.part, complete_[l], early_[l]);
    if (written.count == 0) continue;
    const Span padded = part_of(to, written);
    parts_.compute.Zero(padded.data, padded.bytes());
  }
  PSRING_RETURN_IF_ERROR(
      parts_.model.BackwardUnit(run.layers, state, pass.batch, pass.activations, to, parts_.compute));
  for (size_t l = run.layers.end; l-- > run.layers.first;) {
    const ReadyRange written = WrittenBy(state.part, complete_[l], early_[l]);
    if (adds && written.count > 0) {
      parts_.ops.Add(part_of(gradient, written), part_of(to, written), parts_.compute);
    }
    const ReadyRange early = WrittenBy(BackwardPart::kInput, complete_[l], early_[l]);
    if (state.part == BackwardPart::kBoth || early.count == 0) continue;
    const bool has_sum = has_early_[l];
    has_early_[l] = of_input;
    if (of_input) {
      AddOrCopy(early_sums_[l], part_of(to, early), has_sum);
    } else if (has_sum) {
      AddOrCopy(part_of(gradient, early), early_sums_[l], adds);
    }
  }
  return absl::OkStatus();
}

void UnitPasses::AddOrCopy(Span to, ConstSpan from, bool adds) {
  if (adds) return parts_.ops.Add(to, from, parts_.compute);
  parts_.compute.Copy(to.data, from.data, from.bytes());
}

Span UnitPasses::BeginGradient(const LayerRun& run, const ModelState& state) {
  return Join(run.buckets, [&](size_t bucket) {
    if (const auto begun = begun_.find(bucket); begun != begun_.end()) return begun->second;
    NoteWait(state, /*begins=*/true);
    const Span gradient = begun_[bucket] = memory()->BeginGradient(static_cast<int>(bucket));
    NoteWait(state, /*begins=*/false);
    return gradient;
  });
}

void UnitPasses::Reduce(size_t unit) {
  const auto [first, end] = units_.buckets[unit];
  for (size_t bucket = first; bucket < end; ++bucket) begun_.erase(bucket);
  parts_.strategy.sync->GradientReady(absl::MakeConstSpan(parts_.buckets).subspan(first, end - first),
                                      parts_.compute.Record());
}

Span UnitPasses::GradientOf(const ReadyRange& range, Span flat) const {
  if (!in_blocks()) return flat.Slice(range.first, range.count);
  const auto begun = std::ranges::find_if(begun_, [&](const auto& one) {
    const Bucket& bucket = parts_.buckets[one.first];
    return bucket.first <= range.first && range.first < bucket.first + bucket.count;
  });
  PSRING_CHECK(begun != begun_.end());
  return begun->second.Slice(range.first - parts_.buckets[begun->first].first, range.count);
}

void UnitPasses::WaitForBlocks(const UnitOf& unit_of, std::vector<StepNode>& nodes) const {
  if (!gathers() || parts_.shards == nullptr) return;
  const BlockMemory& weights = parts_.shards->weights;
  std::map<size_t, int> used;  // by place of a block: the last computation with it
  for (int node = 0; node < static_cast<int>(nodes.size()); ++node) {
    const StepKind kind = nodes[static_cast<size_t>(node)].action.kind;
    if (kind != StepKind::kUnshard && !UsesWeights(kind)) continue;
    for (const size_t bucket : BucketsOf(unit_of(nodes[static_cast<size_t>(node)].action))) {
      if (weights.keeps[bucket]) continue;
      const auto last = used.find(weights.blocks[bucket]);
      if (kind != StepKind::kUnshard) {
        used[weights.blocks[bucket]] = node;
      } else if (last != used.end()) {
        nodes[static_cast<size_t>(node)].after.push_back(last->second);
      }
    }
  }
}

int64_t UnitPasses::GatheredElements(const std::vector<size_t>& units, const std::vector<bool>& once) const {
  int64_t elements = 0;
  std::set<size_t> gathered;
  for (const size_t unit : units) {
    for (const size_t bucket : BucketsOf(unit)) {
      if (!gathered.insert(bucket).second && once[bucket]) continue;
      elements += static_cast<int64_t>(parts_.buckets[bucket].count);
    }
  }
  return elements;
}

}  // namespace psring
