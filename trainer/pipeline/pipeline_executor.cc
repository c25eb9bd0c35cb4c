#include "trainer/pipeline/pipeline_executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "trainer/programs/lower_program.h"
#include "trainer/programs/walk_program.h"

namespace psring {
namespace {

// Forward passes of evaluation that are one program.
constexpr int kBatchesAtOnce = 8;

// `order`: adds what nodes wait for; may be null.
using OrderNodes = std::function<void(std::vector<StepNode>& nodes)>;
absl::StatusOr<PipelinePlan> PlanOf(const StepProgram& compute, const ModelCut& cut, int position,
                                    const LowerOptions& options, const OrderNodes& order) {
  PSRING_ASSIGN_OR_RETURN(const StepProgram lowered, LowerProgram(compute, cut, options));
  PSRING_ASSIGN_OR_RETURN(Walk walk, WalkProgram(lowered));
  std::vector<StepNode>& nodes = walk.nodes[static_cast<size_t>(position)];
  if (order != nullptr) order(nodes);
  return PlanPipeline(nodes);
}

absl::StatusOr<StepProgram> ComputationOf(const NamedProgram& program, const PipelinePlace& place,
                                          int micro_batches) {
  PSRING_ASSIGN_OR_RETURN(StepProgram compute, MakeStepProgram(program, place.positions, micro_batches));
  PSRING_CHECK(compute.stages() == place.stages());
  return compute;
}

// Of a rank's steps, and of its evaluations, in which kBatchesAtOnce batches are one program.
struct Plans {
  PipelinePlan step, evaluation;
  size_t slots() const { return std::max(step.slots, evaluation.slots); }
};
absl::StatusOr<Plans> PlansOf(const NamedProgram& program, const PipelinePlace& place, const ModelCut& cut,
                              int micro_batches, const LowerOptions& options,
                              const OrderNodes& order = nullptr) {
  Plans plans;
  PSRING_ASSIGN_OR_RETURN(const StepProgram compute, ComputationOf(program, place, micro_batches));
  PSRING_ASSIGN_OR_RETURN(plans.step, PlanOf(compute, cut, place.position, options, order));
  PSRING_ASSIGN_OR_RETURN(const StepProgram forward, ComputationOf(program, place, kBatchesAtOnce));
  PSRING_ASSIGN_OR_RETURN(plans.evaluation,
                          PlanOf(ForwardOnly(forward), cut, place.position, options, order));
  return plans;
}

BackwardPart BackwardPartOf(StepKind kind) {
  if (kind == StepKind::kBackwardInput) return BackwardPart::kInput;
  return kind == StepKind::kBackwardWeight ? BackwardPart::kWeight : BackwardPart::kBoth;
}

}  // namespace

absl::StatusOr<size_t> SlotsOf(const NamedProgram& program, const PipelinePlace& place, int micro_batches,
                               bool one_copy_stream) {
  PSRING_ASSIGN_OR_RETURN(const Plans plans, PlansOf(program, place, ModelCut::WholeStages(place.stages()),
                                                     micro_batches, {.one_copy_stream = one_copy_stream}));
  return plans.slots();
}

PipelineExecutor::PipelineExecutor(const Parts& parts)
    : parts_(parts),
      model_(parts.model),
      passes_({.model = parts.model,
               .compute = parts.compute,
               .ops = parts.ops,
               .strategy = parts.strategy,
               .buckets = parts.buckets,
               .shards = parts.shards,
               .aside = parts.shards != nullptr
                            ? parts.gradient.Slice(parts.shards->gradient.elements - parts.shards->aside,
                                                   parts.shards->aside)
                            : Span(),
               .divides_backward = parts.program.row.divides_backward},
              parts.part.stages),
      message_times_(parts.part.place.stages() - 1, parts.micro_batches, parts.warmup_steps) {}

absl::StatusOr<std::unique_ptr<PipelineExecutor>> PipelineExecutor::Create(const Parts& parts) {
  auto executor = std::unique_ptr<PipelineExecutor>(new PipelineExecutor(parts));
  PSRING_RETURN_IF_ERROR(executor->MakePlans());
  PSRING_RETURN_IF_ERROR(executor->MakeUpdates());
  if (parts.micro_batches > executor->updates() && !executor->passes_.in_blocks()) {
    PSRING_ASSIGN_OR_RETURN(executor->micro_gradient_, parts.device.Allocate(parts.gradient.bytes()));
  }
  executor->slots_.resize(std::max(executor->step_.slots, executor->evaluation_.slots));
  for (Slot& slot : executor->slots_) {
    PSRING_ASSIGN_OR_RETURN(slot.activations,
                            executor->model_.NewActivations(parts.max_batch, parts.keep, parts.device));
    PSRING_ASSIGN_OR_RETURN(slot.memory, BatchMemory::Create(parts.samples, parts.max_batch, parts.device));
  }
  if (!parts.part.tied.empty()) {
    PSRING_CHECK(parts.tied != nullptr);
    executor->tied_lane_ = parts.device.NewStream(StreamKind::kBackground, "tied");
  }
  return executor;
}

PipelineExecutor::~PipelineExecutor() {
  (void)Finish();
  (void)parts_.compute.Synchronize();
}

size_t PipelineExecutor::slot_bytes() const {
  size_t bytes = 0;
  for (const Slot& slot : slots_) bytes += slot.activations.bytes() + slot.memory.bytes();
  return bytes;
}

absl::Status PipelineExecutor::MakeUpdates() {
  PSRING_ASSIGN_OR_RETURN(std::optional<StageVersions> versions,
                          VersionsOf(parts_.program, place(), parts_.micro_batches));
  if (!versions.has_value()) return absl::OkStatus();
  PSRING_ASSIGN_OR_RETURN(updates_, StageUpdates::Create({.device = parts_.device,
                                                          .compute = parts_.compute,
                                                          .sync = *parts_.strategy.sync,
                                                          .weights = parts_.weights,
                                                          .predictions = parts_.samples.labels},
                                                         *std::move(versions)));
  return absl::OkStatus();
}

// Of other ranks' stages it matters only what they exchange with this rank's: they are one unit each.
absl::Status PipelineExecutor::MakePlans() {
  const StepUnits& units = passes_.units();
  const std::vector<ReadyRange>& complete = passes_.complete();
  ModelCut cut = ModelCut::WholeStages(place().stages());
  for (size_t chunk = 0; chunk < parts_.part.stages.size(); ++chunk) {
    const size_t stage = static_cast<size_t>(place().StageOf(chunk));
    cut.units[stage] = static_cast<int>(units.units_of(chunk));
    cut.bucket_ends[stage] = units.BucketEnds(chunk);
  }
  for (const ReadyRange& tied : parts_.part.tied) {
    const auto with = std::ranges::find_if(units.layers, [&](const LayerRange& unit) {
      return std::any_of(complete.begin() + static_cast<std::ptrdiff_t>(unit.first),
                         complete.begin() + static_cast<std::ptrdiff_t>(unit.end),
                         [&](const ReadyRange& range) {
                           return range.first <= tied.first && tied.first < range.first + range.count;
                         });
    });
    PSRING_CHECK(with != units.layers.end());
    const auto unit = static_cast<size_t>(with - units.layers.begin());
    const auto next = std::ranges::upper_bound(units.stages, unit);
    const size_t chunk = static_cast<size_t>(next - units.stages.begin()) - 1;
    cut.tied.emplace_back(place().StageOf(chunk), static_cast<int>(unit - units.stages[chunk]));
  }
  if (!cut.tied.empty()) cut.tied.emplace_back(place().is_first() ? place().stages() - 1 : 0, 0);
  const LowerOptions options{.reduce_always = passes_.in_blocks(),
                             .shard_weights = passes_.gathers(),
                             .keep_weights = parts_.keep_weights,
                             .one_copy_stream = parts_.one_copy_stream};
  PSRING_ASSIGN_OR_RETURN(Plans plans, PlansOf(parts_.program, place(), cut, parts_.micro_batches, options,
                                               [this](std::vector<StepNode>& nodes) {
                                                 passes_.WaitForBlocks(
                                                     [this](const StepAction& of) { return UnitOf(of); },
                                                     nodes);
                                               }));
  step_ = std::move(plans.step);
  evaluation_ = std::move(plans.evaluation);
  return absl::OkStatus();
}

absl::Status PipelineExecutor::Execute(const PipelinePlan& plan, const Pass& pass) {
  times_.assign(plan.nodes.size(), {});
  done_.assign(plan.nodes.size(), Event());
  has_gradient_.clear();
  sizes_.clear();
  for (const std::vector<int64_t>& batch : *pass.batches) sizes_.push_back(static_cast<int>(batch.size()));
  for (Slot& slot : slots_) slot.micro_batch = -1;
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    const PipelineNode& node = plan.nodes[i];
    if (node.action.kind == StepKind::kUnshard) {
      PSRING_RETURN_IF_ERROR(Unshard(node));
      continue;
    }
    Stream& lane = LaneFor(node.action);
    for (const size_t before : node.after) lane.WaitFor(done_[before]);
    lane.Stamp(times_[i].begin_ns);
    PSRING_RETURN_IF_ERROR(Do(node, pass));
    lane.Stamp(times_[i].end_ns);
    done_[i] = lane.Record();
  }
  slots_[0].memory.DownloadScore(parts_.compute);
  return absl::OkStatus();
}

absl::Status PipelineExecutor::Run(const Dataset& data, const SampledStep& drawn, const StepInfo& info) {
  PSRING_CHECK(drawn.batches.size() == static_cast<size_t>(parts_.micro_batches));
  if (!flushes()) updates_->BeginStep(info, drawn);
  slots_[0].memory.ClearScore(parts_.compute);
  parts_.compute.Stamp(begin_ns_);
  return Execute(step_, {.data = &data,
                         .batches = &drawn.batches,
                         .epoch = drawn.epoch,
                         .state = {.weights = parts_.weights, .buffers = parts_.buffers}});
}

absl::Status PipelineExecutor::Finish() {
  absl::Status status;
  for (const auto& [boundary, ends] : parts_.channels) {
    status.Update(ends.first->lane().Synchronize());
    status.Update(ends.second->lane().Synchronize());
  }
  if (tied_lane_ != nullptr) status.Update(tied_lane_->Synchronize());
  return status;
}

// On the strategy's lane. What it waits for is on the compute stream.
absl::Status PipelineExecutor::Unshard(const PipelineNode& node) {
  const auto last = std::ranges::max_element(node.after);
  return passes_.Unshard(UnitOf(node.action), last == node.after.end() ? Event() : done_[*last]);
}

absl::Status PipelineExecutor::Evaluate(const Dataset& data, int batch, Span weights, Span buffers,
                                        bool computes, const std::function<void(int64_t)>& on_batches) {
  slots_[0].memory.ClearScore(parts_.compute);
  if (passes_.gathers()) {
    parts_.strategy.units->ForgetWeights();
    PSRING_RETURN_IF_ERROR(parts_.compute.Synchronize());  // which may copy the shards
  }
  const std::vector<std::vector<int64_t>> all = EvaluationBatches(data.count(), batch, /*rank=*/0, 1);
  int64_t samples = 0;
  for (size_t first = 0; first < all.size(); first += kBatchesAtOnce) {
    std::vector<std::vector<int64_t>> batches(kBatchesAtOnce);  // the last ones may be empty
    if (computes) {
      std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(first),
                  std::min<size_t>(kBatchesAtOnce, all.size() - first), batches.begin());
    }
    PSRING_RETURN_IF_ERROR(Execute(
        evaluation_, {.data = &data,
                      .batches = &batches,
                      .epoch = 0,
                      .state = {.weights = weights, .buffers = buffers, .mode = PassMode::kEvaluation}}));
    PSRING_RETURN_IF_ERROR(parts_.compute.Synchronize());
    PSRING_RETURN_IF_ERROR(Finish());
    for (const std::vector<int64_t>& done : batches) samples += static_cast<int64_t>(done.size());
    on_batches(samples);
  }
  return absl::OkStatus();
}

// Without a flush, with the version of the weights that the micro-batch reads.
absl::StatusOr<ModelState> PipelineExecutor::StateFor(const StepAction& action, const Pass& pass) const {
  ModelState state = pass.state;
  if (flushes() || state.mode != PassMode::kTraining) return state;
  PSRING_ASSIGN_OR_RETURN(state.weights, updates_->WeightsFor(action.micro_batch));
  return state;
}

// A reduction or an update. The next gradients are those of the next update.
absl::Status PipelineExecutor::UpdateWithoutFlush(const StepAction& action) {
  if (action.kind == StepKind::kReduceGradient) {
    const auto [first, end] = passes_.units().buckets[UnitOf(action)];
    return updates_->Reduce(action.micro_batch,
                            absl::MakeConstSpan(parts_.buckets).subspan(first, end - first));
  }
  PSRING_ASSIGN_OR_RETURN(const bool is_made, updates_->Update(action.micro_batch));
  if (is_made) has_gradient_.clear();
  return absl::OkStatus();
}

// The norm and the updates are the strategy's, after the bucket's sum.
absl::Status PipelineExecutor::Do(const PipelineNode& node, const Pass& pass) {
  switch (node.action.kind) {
    case StepKind::kLoad:
      return Load(node, pass);
    case StepKind::kForward: {
      PSRING_ASSIGN_OR_RETURN(const ModelState state, StateFor(node.action, pass));
      return Forward(node.action, SlotFor(node, pass), state);
    }
    case StepKind::kBackward:
    case StepKind::kBackwardInput:
    case StepKind::kBackwardWeight: {
      PSRING_ASSIGN_OR_RETURN(const ModelState state, StateFor(node.action, pass));
      return Backward(node.action, SlotFor(node, pass), state);
    }
    case StepKind::kSendActivation:
    case StepKind::kReceiveActivation:
    case StepKind::kSendGradient:
    case StepKind::kReceiveGradient:
      return Transfer(node.action, SlotFor(node, pass));
    case StepKind::kReduceTied:
      return ReduceTied();
    case StepKind::kReduceGradient:
      if (!flushes()) return UpdateWithoutFlush(node.action);
      passes_.Reduce(UnitOf(node.action));
      return absl::OkStatus();
    case StepKind::kUpdate:
      return flushes() ? absl::OkStatus() : UpdateWithoutFlush(node.action);
    case StepKind::kNorm:
    case StepKind::kReshard:
      return absl::OkStatus();
    default:
      return absl::UnimplementedError(absl::StrCat("no execution of ", ToText(node.action)));
  }
}

// The first node of a micro-batch that has taken the slot prepares it.
PipelineExecutor::Slot& PipelineExecutor::SlotFor(const PipelineNode& node, const Pass& pass) {
  Slot& slot = slots_[node.slot];
  if (std::exchange(slot.micro_batch, node.action.micro_batch) == node.action.micro_batch) return slot;
  const std::vector<int64_t>& samples = (*pass.batches)[static_cast<size_t>(node.action.micro_batch)];
  slot.batch = {.size = static_cast<int>(samples.size())};
  slot.sample_seeds = SampleSeeds(parts_.seed, pass.epoch, samples);
  return slot;
}

absl::Status PipelineExecutor::Load(const PipelineNode& node, const Pass& pass) {
  Slot& slot = SlotFor(node, pass);
  const std::vector<int64_t>& samples = (*pass.batches)[static_cast<size_t>(node.action.micro_batch)];
  PSRING_ASSIGN_OR_RETURN(slot.batch, slot.memory.Load(*pass.data, samples, parts_.compute));
  return absl::OkStatus();
}

absl::Status PipelineExecutor::Forward(const StepAction& action, Slot& slot, ModelState state) {
  const size_t unit = UnitOf(action);
  state.sample_seeds = slot.sample_seeds.data();
  PSRING_RETURN_IF_ERROR(passes_.Forward(unit, {state, slot.batch, slot.activations}));
  const bool is_last = passes_.units().layers[unit].end == passes_.complete().size();
  if (action.stage + 1 < place().stages() || !is_last) return absl::OkStatus();
  return model_.Loss(slot.batch, slot.activations, slots_[0].memory.score(), parts_.compute);
}

// Leaves the sum of the unit's gradients of the step's micro-batches so far, added in the order of
// computation as a single rank adds them; in blocks that of one micro-batch.
absl::Status PipelineExecutor::Backward(const StepAction& action, Slot& slot, ModelState state) {
  const size_t unit = UnitOf(action);
  state.part = BackwardPartOf(action.kind);
  const bool is_first = has_gradient_.emplace(unit, state.part).second || passes_.in_blocks();
  const Span to = is_first ? parts_.gradient : micro_gradient_.span();
  state.sample_seeds = slot.sample_seeds.data();
  PSRING_RETURN_IF_ERROR(passes_.Backward(unit, {state, slot.batch, slot.activations}, to));
  const LayerRange layers = passes_.units().layers[unit];
  for (size_t l = layers.end; !is_first && l-- > layers.first;) {
    const ReadyRange range = WrittenBy(state.part, passes_.complete()[l], passes_.early()[l]);
    if (range.count == 0) continue;
    parts_.ops.Add(parts_.gradient.Slice(range.first, range.count), to.Slice(range.first, range.count),
                   parts_.compute);
  }
  return absl::OkStatus();
}

absl::Status PipelineExecutor::Transfer(const StepAction& action, Slot& slot) {
  if (slot.batch.size == 0) return absl::OkStatus();
  const StageEdges edges = model_.EdgesOf(place().ChunkOf(action.stage), slot.activations, slot.batch.size);
  switch (action.kind) {
    case StepKind::kSendActivation:
      return ChannelOf(action).Transfer(edges.output);
    case StepKind::kReceiveActivation:
      return ChannelOf(action).Transfer(edges.input);
    case StepKind::kSendGradient:
      return ChannelOf(action).Transfer(edges.input_gradient);
    default:
      return ChannelOf(action).Transfer(edges.output_gradient);
  }
}

// Begins when the gradient is complete on both ranks.
absl::Status PipelineExecutor::ReduceTied() {
  for (const ReadyRange& tied : parts_.part.tied) {
    const Span gradient = passes_.GradientOf(tied, parts_.gradient);
    PSRING_RETURN_IF_ERROR(parts_.tied->AllReduce(gradient, gradient, ReduceOp::kSum, *tied_lane_));
  }
  return absl::OkStatus();
}

size_t PipelineExecutor::LinkOf(const StepAction& action) {
  const bool before = action.kind == StepKind::kReceiveActivation || action.kind == StepKind::kSendGradient;
  const bool of_activation =
      action.kind == StepKind::kSendActivation || action.kind == StepKind::kReceiveActivation;
  return 2 * static_cast<size_t>(action.stage - (before ? 1 : 0)) + (of_activation ? 0 : 1);
}

size_t PipelineExecutor::MessageOf(const StepAction& action) const {
  return LinkOf(action) * static_cast<size_t>(parts_.micro_batches) + static_cast<size_t>(action.micro_batch);
}

Channel& PipelineExecutor::ChannelOf(const StepAction& action) const {
  const size_t link = LinkOf(action);
  const auto& [activations, gradients] = parts_.channels.at(static_cast<int>(link / 2));
  return link % 2 == 0 ? *activations : *gradients;
}

Stream& PipelineExecutor::LaneFor(const StepAction& action) const {
  if (RunsOnCompute(action.kind)) return parts_.compute;
  return action.kind == StepKind::kReduceTied ? *tied_lane_ : ChannelOf(action).lane();
}

Traffic PipelineExecutor::traffic() const {
  Traffic all;
  for (const auto& [boundary, ends] : parts_.channels) {
    all = all + ends.first->traffic() + ends.second->traffic();
  }
  return parts_.tied != nullptr ? all + parts_.tied->traffic() : all;
}

int64_t PipelineExecutor::GatheredElements(const std::vector<bool>& once) const {
  std::vector<size_t> units;
  for (const PipelineNode& node : step_.nodes) {
    if (node.action.kind == StepKind::kUnshard) units.push_back(UnitOf(node.action));
  }
  return passes_.GatheredElements(units, once);
}

}  // namespace psring
