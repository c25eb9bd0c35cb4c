#include "trainer/step/executor.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "trainer/models/replayed_model.h"
#include "trainer/programs/lower_program.h"
#include "trainer/programs/walk_program.h"
#include "trainer/step/evaluation.h"
#include "trainer/tables/touched_rows.h"

namespace psring {
namespace {

BackwardPart BackwardPartOf(StepKind kind) {
  if (kind == StepKind::kBackwardInput) return BackwardPart::kInput;
  return kind == StepKind::kBackwardWeight ? BackwardPart::kWeight : BackwardPart::kBoth;
}

// After the gradient's blocks.
Span AsideOf(const Executor::Parts& parts) {
  if (parts.shards == nullptr) return {};
  return parts.gradient.Slice(parts.shards->gradient.elements - parts.shards->aside, parts.shards->aside);
}

}  // namespace

Executor::Executor(const TrainingOptions& options, const Parts& parts)
    : options_(options),
      parts_(parts),
      place_(parts.part != nullptr ? parts.part->place : PipelinePlace()),
      passes_({.model = parts.model,
               .compute = parts.compute,
               .ops = parts.ops,
               .strategy = parts.strategy,
               .buckets = parts.buckets,
               // Waiting is not computing.
               .on_wait = [&delay = parts.delay](bool begins) { begins ? delay.Prolong() : delay.Resume(); },
               .shards = parts.shards,
               .aside = AsideOf(parts),
               .divides_backward = parts.program.row.divides_backward},
              parts.part != nullptr ? parts.part->stages : std::vector<LayerRange>()),
      reduce_([this](int unit) {
        passes_.Reduce(static_cast<size_t>(unit));
        parts_.delay.Resume();
      }) {}

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const TrainingOptions& options,
                                                           const Parts& parts) {
  auto executor = std::unique_ptr<Executor>(new Executor(options, parts));
  PSRING_RETURN_IF_ERROR(executor->MakePlans());
  PSRING_RETURN_IF_ERROR(executor->Allocate());
  return executor;
}

Executor::~Executor() {
  if (is_pipeline()) (void)parts_.messages->Finish();
  (void)parts_.compute.Synchronize();
}

absl::Status Executor::MakePlans() {
  const std::vector<ReadyRange> tied = is_pipeline() ? parts_.part->tied : std::vector<ReadyRange>();
  const LowerOptions options{.norm = options_.clip_norm > 0 && !is_pipeline(),
                             .reduce_always = passes_.in_blocks(),
                             .shard_weights = passes_.gathers(),
                             .keep_weights = options_.reshard == "never",
                             .one_copy_stream = options_.copy_streams == 1};
  PSRING_ASSIGN_OR_RETURN(
      plans_, PlansOfRank(parts_.program, place_,
                          CutOfRank(place_, passes_.units(), passes_.complete(), tied, passes_.kept()),
                          micro_batches(), options, [this](std::vector<StepNode>& nodes) {
                            passes_.WaitForBlocks([this](const StepAction& of) { return UnitOf(of); }, nodes);
                          }));
  times_.reserve(std::max(plans_.step.nodes.size(), plans_.evaluation.nodes.size()));
  if (!is_pipeline()) FindBatches();
  return absl::OkStatus();
}

void Executor::FindBatches() {
  const std::vector<PlannedNode>& nodes = plans_.step.nodes;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].action.kind == StepKind::kLoad) {
      if (!batches_.empty()) batches_.back().end = i;
      batches_.push_back({.load = i, .forward = i + 1, .end = nodes.size()});
    }
    if (nodes[i].action.kind == StepKind::kForward) batches_.back().backward = i + 1;
  }
  batch_times_.resize(batches_.size());
}

absl::Status Executor::Allocate() {
  if (plans_.versions.has_value()) {
    PSRING_ASSIGN_OR_RETURN(updates_, StageUpdates::Create({.device = parts_.device,
                                                            .compute = parts_.compute,
                                                            .sync = *parts_.strategy.sync,
                                                            .weights = parts_.weights,
                                                            .predictions = parts_.samples.labels},
                                                           *plans_.versions));
  }
  const size_t bytes = parts_.gradient.bytes();
  if (options_.reference_workers > 1) {
    PSRING_ASSIGN_OR_RETURN(worker_gradient_, parts_.device.Allocate(bytes));
  }
  const int updates = flushes() ? 1 : plans_.versions->updates();
  if (options_.micro_batches > updates && !passes_.in_blocks()) {
    PSRING_ASSIGN_OR_RETURN(micro_gradient_, parts_.device.Allocate(bytes));
  }
  const Keep keep = parts_.program.row.divides_backward ? Keep::kForWeights : KeepOf(options_);
  slots_.resize(plans_.slots());
  for (Slot& slot : slots_) {
    PSRING_ASSIGN_OR_RETURN(slot.activations,
                            parts_.model.NewActivations(parts_.max_batch, keep, parts_.device));
    PSRING_ASSIGN_OR_RETURN(slot.memory,
                            BatchMemory::Create(parts_.samples, parts_.max_batch, parts_.device));
  }
  return absl::OkStatus();
}

bool Executor::Repeats(int64_t global_samples) const {
  const auto last = recordings_.find({Part::kStep, static_cast<size_t>(micro_batches()) - 1, global_samples});
  return last != recordings_.end() && last->second.repeats();
}

void Executor::Begin(const Pass& pass) {
  times_.assign(pass.plan.nodes.size(), {});
  done_.assign(pass.plan.nodes.size(), Event());
  sizes_.clear();
  for (const std::vector<int64_t>& batch : pass.batches) sizes_.push_back(static_cast<int>(batch.size()));
  for (Slot& slot : slots_) slot.micro_batch = -1;
}

absl::Status Executor::Run(const Dataset& data, const SampledStep& drawn, const StepInfo& info,
                           int64_t delay_step) {
  const Pass pass{.plan = plans_.step,
                  .data = data,
                  .batches = drawn.batches,
                  .state = {.weights = parts_.weights,
                            .buffers = parts_.buffers,
                            .statistics = parts_.statistics,
                            .rows = parts_.rows},
                  .epoch = drawn.epoch};
  PSRING_CHECK(drawn.batches.size() == static_cast<size_t>(micro_batches()));
  if (!flushes()) updates_->BeginStep(info, drawn);
  slots_[0].memory.ClearScore(parts_.compute);
  Begin(pass);
  if (is_pipeline()) {
    parts_.compute.Stamp(begin_ns_);
    PSRING_RETURN_IF_ERROR(Enqueue(pass, 0, pass.plan.nodes.size(), reduce_));
  }
  for (size_t batch = 0; batch < batches_.size(); ++batch) {
    PSRING_RETURN_IF_ERROR(RunBatch(pass, batch, info, delay_step));
  }
  slots_[0].memory.DownloadScore(parts_.compute);
  steps_in_full_ = std::max(0, steps_in_full_ - 1);
  return absl::OkStatus();
}

absl::Status Executor::FinishMessages(ReplicaExchange& replica) {
  PSRING_RETURN_IF_ERROR(parts_.messages->Finish());
  return parts_.messages->ShareTimes(replica, nodes(), times_, sizes_);
}

absl::Status Executor::Evaluate(const Dataset& data, int batch, Span weights, TouchedRows* rows,
                                bool computes, const std::function<void(int64_t)>& on_batches) {
  if (passes_.gathers()) {
    parts_.strategy.units->ForgetWeights();
    PSRING_RETURN_IF_ERROR(parts_.compute.Synchronize());  // which may copy the shards
    weights = parts_.weights;
  }
  const size_t at_once = static_cast<size_t>(plans_.evaluated);
  const std::vector<std::vector<int64_t>> empty(at_once);
  const auto run = [&](const std::vector<std::vector<int64_t>>& batches, size_t first) -> absl::Status {
    const Pass pass{
        .plan = plans_.evaluation,
        .data = data,
        .batches = computes ? batches : empty,
        .state = {.weights = weights, .buffers = parts_.buffers, .mode = PassMode::kEvaluation, .rows = rows},
        .first_batch = first};
    Begin(pass);
    PSRING_RETURN_IF_ERROR(Enqueue(pass, 0, pass.plan.nodes.size(), reduce_));
    PSRING_RETURN_IF_ERROR(parts_.compute.Synchronize());
    return is_pipeline() ? parts_.messages->Finish() : absl::OkStatus();
  };
  return EvaluateBatches(data, batch, at_once, slots_[0].memory, parts_.compute, run, on_batches);
}

// The one loop over a program's nodes. `reduce`: takes the unit of each reduction.
absl::Status Executor::Enqueue(const Pass& pass, size_t first, size_t end, const RecordedPass::Cut& reduce) {
  for (size_t i = first; i < end; ++i) {
    const PlannedNode& node = pass.plan.nodes[i];
    if (node.action.kind == StepKind::kUnshard) {
      PSRING_RETURN_IF_ERROR(Unshard(node));
      continue;
    }
    Stream& lane = LaneFor(node.action);
    const bool is_timed = IsTimed(node.action.kind);
    for (const size_t before : node.after) lane.WaitFor(done_[before]);
    if (is_timed) lane.Stamp(times_[i].begin_ns);
    PSRING_RETURN_IF_ERROR(Do(node, pass, reduce));
    if (is_timed) lane.Stamp(times_[i].end_ns);
    if (node.is_awaited) done_[i] = lane.Record();
  }
  return absl::OkStatus();
}

bool Executor::IsTimed(StepKind kind) const {
  return is_pipeline() || (steps_in_full_ > 0 && !options_.cuda_graph && Computes(kind));
}

Stream& Executor::LaneFor(const StepAction& action) const {
  return RunsOnCompute(action.kind) ? parts_.compute : parts_.messages->LaneFor(action);
}

// Of single_stage. Loading is not recorded.
absl::Status Executor::RunBatch(const Pass& pass, size_t batch, const StepInfo& info, int64_t delay_step) {
  PSRING_RETURN_IF_ERROR(Enqueue(pass, batches_[batch].load, batches_[batch].forward, reduce_));
  if (!records_steps()) return RunPasses(pass, batch, delay_step);
  const auto enqueue = [&](const RecordedPass::Cut&) { return RunPasses(pass, batch, delay_step); };
  return recordings_[{Part::kStep, batch, info.global_samples}].Run(parts_.compute, enqueue, {});
}

absl::Status Executor::RunPasses(const Pass& pass, size_t batch, int64_t delay_step) {
  const auto [load, forward, backward, end] = batches_[batch];
  const size_t of_worker = static_cast<size_t>(options_.micro_batches);
  const bool worker_done = (batch + 1) % of_worker == 0, step_done = batch + 1 == batches_.size();
  BatchTimes& times = batch_times_[batch];
  parts_.compute.Stamp(times.forward_ns);
  if (batch == 0) parts_.delay.Begin(delay_step);
  PSRING_RETURN_IF_ERROR(RunPass(pass, {Part::kForward, 0, sizes_[batch]}, forward, backward));
  parts_.delay.Prolong();
  parts_.compute.Stamp(times.backward_ns);
  PSRING_RETURN_IF_ERROR(RunPass(pass, {Part::kBackward, batch, sizes_[batch]}, backward, end));
  if (parts_.rows != nullptr && worker_done && of_worker > 1) parts_.rows->EndWorker(step_done);
  parts_.compute.Stamp(times.end_ns);
  if (step_done && records_steps()) parts_.strategy.recording->FinishBackward();
  return absl::OkStatus();
}

absl::Status Executor::RunPass(const Pass& pass, const Key& key, size_t first, size_t end) {
  const bool is_empty = std::get<int64_t>(key) == 0;
  if (!options_.cuda_graph || records_steps() || is_empty) return Enqueue(pass, first, end, reduce_);
  const auto enqueue = [&](const RecordedPass::Cut& cut) { return Enqueue(pass, first, end, cut); };
  return recordings_[key].Run(parts_.compute, enqueue, reduce_);
}

// The norm and the updates are the strategy's, after the bucket's sum.
absl::Status Executor::Do(const PlannedNode& node, const Pass& pass, const RecordedPass::Cut& reduce) {
  const StepAction& action = node.action;
  switch (action.kind) {
    case StepKind::kLoad:
      return Load(action, SlotFor(node, pass), pass);
    case StepKind::kForward:
    case StepKind::kBackward:
    case StepKind::kBackwardInput:
    case StepKind::kBackwardWeight: {
      Slot& slot = SlotFor(node, pass);
      PSRING_ASSIGN_OR_RETURN(const ModelState state, StateFor(action, slot, pass));
      return action.kind == StepKind::kForward ? Forward(action, slot, state) : Backward(node, slot, state);
    }
    case StepKind::kSendActivation:
    case StepKind::kReceiveActivation:
    case StepKind::kSendGradient:
    case StepKind::kReceiveGradient: {
      Slot& slot = SlotFor(node, pass);
      if (slot.batch.size == 0) return absl::OkStatus();
      return parts_.messages->Transfer(
          action, parts_.model.EdgesOf(place_.ChunkOf(action.stage), slot.activations, slot.batch.size));
    }
    case StepKind::kReduceTied:
      return ReduceTied();
    case StepKind::kReduceGradient:
      if (!flushes()) return UpdateWithoutFlush(action);
      reduce(static_cast<int>(UnitOf(action)));
      return absl::OkStatus();
    case StepKind::kUpdate:
      return flushes() ? absl::OkStatus() : UpdateWithoutFlush(action);
    case StepKind::kNorm:
    case StepKind::kReshard:
      return absl::OkStatus();
    default:
      return Unimplemented("no execution of ", ToText(action));
  }
}

// The first node of a micro-batch that has taken the slot prepares it.
Executor::Slot& Executor::SlotFor(const PlannedNode& node, const Pass& pass) {
  Slot& slot = slots_[node.slot];
  if (std::exchange(slot.micro_batch, node.action.micro_batch) == node.action.micro_batch) return slot;
  slot.batch = {.size = SamplesOf(node.action)};
  if (options_.dropout > 0) {
    slot.sample_seeds =
        SampleSeeds(options_.seed, pass.epoch, pass.batches[static_cast<size_t>(node.action.micro_batch)]);
  }
  return slot;
}

// Micro-batches may stand for workers, of which the first is rank 0: only its buffers are updated. Without a
// flush, weights are the version that the micro-batch reads.
absl::StatusOr<ModelState> Executor::StateFor(const StepAction& action, const Slot& slot,
                                              const Pass& pass) const {
  ModelState state = pass.state;
  state.part = BackwardPartOf(action.kind);
  if (!slot.sample_seeds.empty()) state.sample_seeds = slot.sample_seeds.data();
  if (state.rows != nullptr) {
    state.lookups = &state.rows->batch(pass.first_batch + static_cast<size_t>(action.micro_batch));
  }
  if (state.mode != PassMode::kTraining) return state;
  if (action.micro_batch >= options_.micro_batches) state.buffers = {};
  if (!flushes()) {
    PSRING_ASSIGN_OR_RETURN(state.weights, updates_->WeightsFor(action.micro_batch));
  }
  return state;
}

// On the strategy's lane. What it waits for is on the compute stream.
absl::Status Executor::Unshard(const PlannedNode& node) {
  const auto last = std::ranges::max_element(node.after);
  return passes_.Unshard(UnitOf(node.action), last == node.after.end() ? Event() : done_[*last]);
}

absl::Status Executor::Load(const StepAction& action, Slot& slot, const Pass& pass) {
  const size_t batch = static_cast<size_t>(action.micro_batch);
  TouchedRows* const rows = pass.state.rows;
  PSRING_ASSIGN_OR_RETURN(
      slot.batch, rows != nullptr ? slot.memory.Load(rows->gathered(pass.first_batch + batch), parts_.compute)
                                  : slot.memory.Load(pass.data, pass.batches[batch], parts_.compute));
  return absl::OkStatus();
}

absl::Status Executor::Forward(const StepAction& action, Slot& slot, const ModelState& state) {
  const size_t unit = UnitOf(action);
  PSRING_RETURN_IF_ERROR(passes_.Forward(unit, {state, slot.batch, slot.activations}));
  const bool is_last = passes_.units().layers[unit].end == passes_.complete().size();
  if (action.stage + 1 < place_.stages() || !is_last) return absl::OkStatus();
  return parts_.model.Loss(slot.batch, slot.activations, slots_[0].memory.score(), parts_.compute);
}

// Leaves the sum of the unit's gradients of the step's micro-batches so far; in blocks that of one, which the
// strategy adds up. Order of additions: first the accumulated micro-batches of a worker, in the order of
// computation, then the workers that micro-batches represent, as a server in deterministic mode adds them.
absl::Status Executor::Backward(const PlannedNode& node, Slot& slot, const ModelState& state) {
  const size_t unit = UnitOf(node.action);
  const int of_worker = options_.micro_batches, micro_batch = node.action.micro_batch;
  const bool is_first_worker = micro_batch < of_worker;
  const bool begins_worker = !is_first_worker && micro_batch % of_worker == 0;
  const bool ends_worker = !is_first_worker && (micro_batch + 1) % of_worker == 0;
  const bool is_first = node.is_first || begins_worker || passes_.in_blocks();
  const Span sum = is_first_worker ? parts_.gradient : worker_gradient_.span();
  const Span to = is_first ? sum : micro_gradient_.span();
  PSRING_RETURN_IF_ERROR(passes_.Backward(unit, {state, slot.batch, slot.activations}, to));
  const LayerRange layers = passes_.units().layers[unit];
  for (size_t l = layers.end; l-- > layers.first;) {
    const ReadyRange range = WrittenBy(state.part, passes_.complete()[l], passes_.early()[l]);
    if (range.count == 0) continue;
    const auto add = [&](const Span& into, const Span& from) {
      parts_.ops.Add(into.Slice(range.first, range.count), from.Slice(range.first, range.count),
                     parts_.compute);
    };
    if (!is_first) add(sum, to);
    if (ends_worker) add(parts_.gradient, sum);
  }
  parts_.delay.Prolong();
  return absl::OkStatus();
}

absl::Status Executor::ReduceTied() {
  for (const ReadyRange& tied : parts_.part->tied) {
    PSRING_RETURN_IF_ERROR(parts_.messages->ReduceTied(passes_.GradientOf(tied, parts_.gradient)));
  }
  return absl::OkStatus();
}

// A reduction or an update.
absl::Status Executor::UpdateWithoutFlush(const StepAction& action) {
  if (action.kind == StepKind::kReduceGradient) {
    const auto [first, end] = passes_.units().buckets[UnitOf(action)];
    return updates_->Reduce(action.micro_batch,
                            absl::MakeConstSpan(parts_.buckets).subspan(first, end - first));
  }
  return updates_->Update(action.micro_batch);
}

RankTimes Executor::Times() const {
  if (is_pipeline()) {
    RankTimes times = PipelineTimes(nodes(), times_, sizes_, begin_ns_, *parts_.messages);
    if (flushes()) return times;
    times.exposed.insert(times.exposed.end(), updates_->exposed().begin(), updates_->exposed().end());
    return times;
  }
  RankTimes times;
  for (const auto& [forward_ns, backward_ns, end_ns] : batch_times_) {
    times.passes.push_back({{StepKind::kForward}, {forward_ns, backward_ns}});
    times.passes.push_back({{StepKind::kBackward}, {backward_ns, end_ns}});
    times.compute_ns += end_ns - forward_ns;
  }
  for (size_t i = 0; i < nodes().size(); ++i) {
    if (times_[i].end_ns > 0) times.units.push_back({nodes()[i].action, times_[i]});
  }
  return times;
}

size_t Executor::slot_bytes() const {
  size_t bytes = 0;
  for (const Slot& slot : slots_) bytes += slot.activations.bytes() + slot.memory.bytes();
  return bytes;
}

int64_t Executor::GatheredElements(const std::vector<bool>& once) const {
  std::vector<size_t> units;
  for (const PlannedNode& node : nodes()) {
    if (node.action.kind == StepKind::kUnshard) units.push_back(UnitOf(node.action));
  }
  return passes_.GatheredElements(units, once);
}

}  // namespace psring
