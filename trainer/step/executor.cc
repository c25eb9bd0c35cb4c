#include "trainer/step/executor.h"

#include <algorithm>

#include "common/base/check.h"
#include "trainer/programs/lower_program.h"
#include "trainer/programs/program_rows.h"
#include "trainer/tables/touched_rows.h"

namespace psring {

absl::Status RecordedPass::Run(Stream& stream, const Enqueue& enqueue, const Cut& ready) {
  switch (runs_++) {
    case 0:
      return enqueue(ready);
    case 1:
      return Record(stream, enqueue, ready);
    default:
      for (const Piece& piece : pieces_) {
        if (piece.work != nullptr) piece.work->Replay();
        if (piece.unit.has_value()) ready(*piece.unit);
      }
      return absl::OkStatus();
  }
}

absl::Status RecordedPass::Record(Stream& stream, const Enqueue& enqueue, const Cut& ready) {
  absl::Status status = BeginRecording(stream);
  // Ends a piece and executes it.
  const auto end = [&](std::optional<int> unit) {
    if (!status.ok()) return;
    absl::StatusOr<std::unique_ptr<RecordedWork>> work = EndRecording(stream);
    status = work.status();
    if (!status.ok()) return;
    pieces_.push_back({*std::move(work), unit});
    if (pieces_.back().work != nullptr) pieces_.back().work->Replay();
  };
  const absl::Status enqueued = enqueue([&](int unit) {
    end(unit);
    ready(unit);
    if (status.ok()) status = BeginRecording(stream);
  });
  end(std::nullopt);
  return enqueued.ok() ? status : enqueued;
}

namespace {

bool Computes(StepKind kind) { return LaneOf(kind) == StepLane::kCompute && kind != StepKind::kReshard; }

}  // namespace

Executor::Executor(const TrainingOptions& options, const Parts& parts)
    : options_(options),
      parts_(parts),
      // Waiting is not computing.
      passes_(
          {.model = parts.model,
           .compute = parts.compute,
           .ops = parts.ops,
           .strategy = parts.strategy,
           .buckets = parts.buckets,
           .on_wait = [&delay = parts.delay](bool begins) { begins ? delay.Prolong() : delay.Resume(); }}) {}

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const TrainingOptions& options,
                                                           const Parts& parts) {
  auto executor = std::unique_ptr<Executor>(new Executor(options, parts));
  PSRING_RETURN_IF_ERROR(executor->PlanNodes());
  const size_t bytes = parts.gradient.bytes();
  if (options.reference_workers > 1) {
    PSRING_ASSIGN_OR_RETURN(executor->worker_gradient_, parts.device.Allocate(bytes));
  }
  if (options.micro_batches > 1 && !executor->passes_.in_blocks()) {
    PSRING_ASSIGN_OR_RETURN(executor->micro_gradient_, parts.device.Allocate(bytes));
  }
  return executor;
}

absl::Status Executor::PlanNodes() {
  PSRING_ASSIGN_OR_RETURN(const NamedProgram program, FindStepProgram("single_stage"));
  PSRING_ASSIGN_OR_RETURN(
      const StepProgram compute,
      MakeStepProgram(program, /*ranks=*/1, options_.reference_workers * options_.micro_batches));
  PSRING_ASSIGN_OR_RETURN(const StepProgram lowered,
                          LowerProgram(compute, passes_.units().cut(),
                                       {.norm = options_.clip_norm > 0,
                                        .reduce_always = passes_.in_blocks(),
                                        .shard_weights = passes_.gathers(),
                                        .keep_weights = options_.reshard == "never"}));
  PSRING_ASSIGN_OR_RETURN(Walk walk, WalkProgram(lowered));
  nodes_ = std::move(walk.nodes[0]);
  times_.resize(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].action.kind == StepKind::kLoad) {
      if (!batches_.empty()) batches_.back().end = i;
      batches_.push_back({.forward = i + 1, .end = nodes_.size()});
    } else if (nodes_[i].action.kind == StepKind::kBackward && batches_.back().backward == 0) {
      batches_.back().backward = i;
    }
  }
  return absl::OkStatus();
}

bool Executor::Repeats(int64_t global_samples) const {
  const auto last = recordings_.find({Part::kStep, batches_.size() - 1, global_samples});
  return last != recordings_.end() && last->second.repeats();
}

// One stream runs the nodes in their order, and buckets are passed on with an event of it: that implies what
// nodes wait for (StepNode::after).
absl::Status Executor::Run(const Dataset& data, const SampledStep& drawn, const StepInfo& info,
                           int64_t delay_step) {
  PSRING_CHECK(drawn.batches.size() == batches_.size());
  parts_.batches.ClearScore(parts_.compute);
  std::ranges::fill(times_, NodeTime());
  if (passes_.gathers()) done_.assign(nodes_.size(), Event());
  next_gathering_ = 0;
  for (size_t i = 0; i < batches_.size(); ++i) {
    PSRING_ASSIGN_OR_RETURN(batch_, parts_.rows != nullptr
                                        ? parts_.batches.Load(parts_.rows->gathered(i), parts_.compute)
                                        : parts_.batches.Load(data, drawn.batches[i], parts_.compute));
    if (options_.dropout > 0) sample_seeds_ = SampleSeeds(options_.seed, drawn.epoch, drawn.batches[i]);
    if (!records_steps()) {
      PSRING_RETURN_IF_ERROR(RunBatch(i, delay_step));
      continue;
    }
    RecordedPass& recording = recordings_[{Part::kStep, i, info.global_samples}];
    const auto enqueue = [&](const RecordedPass::Cut&) { return RunBatch(i, delay_step); };
    PSRING_RETURN_IF_ERROR(recording.Run(parts_.compute, enqueue, {}));
  }
  parts_.batches.DownloadScore(parts_.compute);
  steps_in_full_ = std::max(0, steps_in_full_ - 1);
  return absl::OkStatus();
}

absl::Status Executor::RunBatch(size_t batch, int64_t delay_step) {
  const auto [forward, backward, end] = batches_[batch];
  const size_t each = batches_of_worker();
  const bool worker_done = (batch + 1) % each == 0, step_done = batch + 1 == batches_.size();
  parts_.compute.Stamp(times_[forward].begin_ns);
  if (batch == 0) parts_.delay.Begin(delay_step);
  PSRING_RETURN_IF_ERROR(RunPass({Part::kForward, 0, batch_.size}, forward, backward));
  parts_.delay.Prolong();
  parts_.compute.Stamp(times_[backward].begin_ns);
  PSRING_RETURN_IF_ERROR(RunPass({Part::kBackward, batch, batch_.size}, backward, end));
  if (parts_.rows != nullptr && worker_done && each > 1) parts_.rows->EndWorker(step_done);
  parts_.compute.Stamp(times_[end - 1].end_ns);
  if (step_done && records_steps()) parts_.strategy.recording->FinishBackward();
  return absl::OkStatus();
}

absl::Status Executor::RunPass(const Key& key, size_t first, size_t end) {
  const RecordedPass::Cut reduce = [this](int unit) { Reduce(unit); };
  if (!options_.cuda_graph || records_steps() || batch_.size == 0) return Enqueue(first, end, reduce);
  const auto enqueue = [&](const RecordedPass::Cut& cut) { return Enqueue(first, end, cut); };
  return recordings_[key].Run(parts_.compute, enqueue, reduce);
}

absl::Status Executor::Enqueue(size_t first, size_t end, const RecordedPass::Cut& cut) {
  const bool in_full = steps_in_full_ > 0 && !options_.cuda_graph;
  for (size_t i = first; i < end; ++i) {
    const StepAction& action = nodes_[i].action;
    // The strategy computes the norm and updates a bucket after its sum.
    if (action.kind == StepKind::kReduceGradient) cut(action.unit);
    if (action.kind == StepKind::kReshard) done_[i] = parts_.compute.Record();
    if (!Computes(action.kind)) continue;
    if (passes_.gathers()) PSRING_RETURN_IF_ERROR(UnshardAhead(i));
    if (in_full && i > first) parts_.compute.Stamp(times_[i].begin_ns);
    PSRING_RETURN_IF_ERROR(Compute(action));
    if (in_full) parts_.compute.Stamp(times_[i].end_ns);
    if (passes_.gathers()) done_[i] = parts_.compute.Record();
  }
  return absl::OkStatus();
}

absl::Status Executor::Compute(const StepAction& action) {
  const size_t batch = static_cast<size_t>(action.micro_batch);
  const size_t unit = static_cast<size_t>(action.unit);
  if (action.kind == StepKind::kBackward) return Backward(batch, unit);
  PSRING_CHECK(action.kind == StepKind::kForward);
  return Forward(batch, unit);
}

absl::Status Executor::Forward(size_t batch, size_t unit) {
  PSRING_RETURN_IF_ERROR(passes_.Forward(unit, {StateOf(batch), batch_, parts_.activations}));
  if (unit + 1 < passes_.units().layers.size()) return absl::OkStatus();
  return parts_.model.Loss(batch_, parts_.activations, parts_.batches.score(), parts_.compute);
}

// Before the computation `node`: what the next one needs is gathered meanwhile. All nodes that a gathering
// waits for (StepNode::after) are on the compute stream.
absl::Status Executor::UnshardAhead(size_t node) {
  for (; next_gathering_ < nodes_.size(); ++next_gathering_) {
    const auto& [action, lane, after] = nodes_[next_gathering_];
    if (next_gathering_ > node && Computes(action.kind)) break;
    if (action.kind != StepKind::kUnshard) continue;
    const auto last = std::ranges::max_element(after);
    PSRING_RETURN_IF_ERROR(passes_.Unshard(
        static_cast<size_t>(action.unit), last == after.end() ? Event() : done_[static_cast<size_t>(*last)]));
  }
  return absl::OkStatus();
}

int64_t Executor::GatheredElements(const std::vector<bool>& once) const {
  std::vector<size_t> units;
  for (const StepNode& node : nodes_) {
    if (node.action.kind == StepKind::kUnshard) units.push_back(static_cast<size_t>(node.action.unit));
  }
  return passes_.GatheredElements(units, once);
}

absl::StatusOr<BatchScore> Executor::Evaluate(const Dataset& data, int batch, bool computes,
                                              const std::function<void(int64_t)>& on_batch) {
  PSRING_CHECK(passes_.gathers());
  parts_.strategy.units->ForgetWeights();
  parts_.batches.ClearScore(parts_.compute);
  int64_t predictions = 0;
  for (const std::vector<int64_t>& indices : EvaluationBatches(data.count(), batch, /*rank=*/0, 1)) {
    Batch loaded;
    if (computes) {
      PSRING_ASSIGN_OR_RETURN(loaded, parts_.batches.Load(data, indices, parts_.compute));
    }
    const ModelState state{
        .weights = parts_.weights, .buffers = parts_.buffers, .mode = PassMode::kEvaluation};
    for (size_t unit = 0; unit < passes_.units().layers.size(); ++unit) {
      PSRING_RETURN_IF_ERROR(passes_.Unshard(unit, parts_.compute.Record()));
      PSRING_RETURN_IF_ERROR(passes_.Forward(unit, {state, loaded, parts_.activations}));
    }
    if (computes) {
      PSRING_RETURN_IF_ERROR(
          parts_.model.Loss(loaded, parts_.activations, parts_.batches.score(), parts_.compute));
    }
    PSRING_RETURN_IF_ERROR(parts_.compute.Synchronize());
    on_batch(predictions += static_cast<int64_t>(indices.size()) * data.spec().labels);
  }
  parts_.batches.DownloadScore(parts_.compute);
  PSRING_RETURN_IF_ERROR(parts_.compute.Synchronize());
  return parts_.batches.downloaded_score();
}

// Leaves the sum of the unit's gradients of the step's batches so far. Order of additions: first the
// accumulated batches of a worker, then the workers that micro-batches represent, as a server in
// deterministic mode adds them.
absl::Status Executor::Backward(size_t batch, size_t unit) {
  const size_t each = batches_of_worker();
  const bool first_of_worker = batch % each == 0, first_worker = batch < each;
  const bool worker_done = (batch + 1) % each == 0;
  const Span sum = first_worker ? parts_.gradient : worker_gradient_.span();
  const Span to = first_of_worker ? sum : micro_gradient_.span();
  PSRING_RETURN_IF_ERROR(passes_.Backward(unit, {StateOf(batch), batch_, parts_.activations},
                                          passes_.in_blocks() ? parts_.gradient : to));
  // The strategy adds up micro-batches of which ranks have only shards.
  const LayerRange layers = passes_.in_blocks() ? LayerRange() : passes_.units().layers[unit];
  for (size_t l = layers.end; l-- > layers.first;) {
    const ReadyRange range = passes_.complete()[l];
    if (range.count == 0) continue;
    const auto add = [&](Span into, Span from) {
      parts_.ops.Add(into.Slice(range.first, range.count), from.Slice(range.first, range.count),
                     parts_.compute);
    };
    if (!first_of_worker) add(sum, to);
    if (worker_done && !first_worker) add(parts_.gradient, sum);
  }
  parts_.delay.Prolong();
  return absl::OkStatus();
}

void Executor::Reduce(int unit) {
  passes_.Reduce(static_cast<size_t>(unit));
  parts_.delay.Resume();
}

ModelState Executor::StateOf(size_t batch) const {
  return {.weights = parts_.weights,
          .buffers = batch < batches_of_worker() ? parts_.buffers : Span{},
          .statistics = parts_.statistics,
          .rows = parts_.rows,
          .lookups = parts_.rows != nullptr ? &parts_.rows->batch(batch) : nullptr,
          .sample_seeds = sample_seeds_.empty() ? nullptr : sample_seeds_.data()};
}

Executor::BatchTimes Executor::TimesOf(size_t batch) const {
  const auto [forward, backward, end] = batches_[batch];
  return {times_[forward].begin_ns, times_[backward].begin_ns, times_[end - 1].end_ns};
}

}  // namespace psring
