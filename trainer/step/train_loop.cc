// The training loop: any strategy, one rank.
#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/io/hash.h"
#include "trainer/step/training.h"

namespace psring {
namespace {

absl::Status AtStep(int64_t step, const absl::Status& status) {
  return Prefixed(status, "step ", step, ": ");
}

}  // namespace

Training::~Training() {
  executor_.reset();
  if (rows_ != nullptr) rows_->Close();
  strategy_ = {};
  part_.Close();
  compute_.reset();
}

absl::StatusOr<RankResult> Training::Run(std::vector<float>* final_weights) {
  PSRING_ASSIGN_OR_RETURN(const int64_t first, Start());
  if (absl::Status trained = Steps(first); !trained.ok()) {
    Abort(trained);
    checkpointer_->PublishLastPart();
    return trained;
  }
  clock_->End();
  if (absl::Status ended = End(final_weights); !ended.ok()) {
    if (worker_.pipeline != nullptr || worker_.sequence != nullptr || shards_weights()) Abort(ended);
    return ended;
  }
  return std::move(result_);
}

// Otherwise the peers would wait for their deadline.
void Training::Abort(const absl::Status& why) {
  rows_->Abort(why);
  strategy_.sync->Abort(why);
  if (worker_.statistics != nullptr) worker_.statistics->Abort(why);
  if (worker_.pipeline != nullptr) worker_.pipeline->Abort(why);
  if (worker_.sequence != nullptr) worker_.sequence->Abort(why);
}

// After the last step: a checkpoint, the result and the scores.
absl::Status Training::End(std::vector<float>* final_weights) {
  PSRING_RETURN_IF_ERROR(checkpointer_->SaveLast());
  if (options_.evaluate && worker_.rank == 0) {
    PSRING_RETURN_IF_ERROR(rows_->PullForEvaluation(clock_->next(), evaluation_batch_));
  }
  PSRING_RETURN_IF_ERROR(rows_->Leave());
  PSRING_RETURN_IF_ERROR(strategy_.sync->Collect(memory_->weights().device));
  PSRING_RETURN_IF_ERROR(Describe());
  if (evaluates()) {
    PSRING_RETURN_IF_ERROR(KeepSnapshot());
    PSRING_RETURN_IF_ERROR(recorder_->ScoreCurve(
        [this](const WeightsCopy& copy, const auto& on_batch) { return ScoreCopy(copy, on_batch); }));
  }
  result_.peak_memory_mb = PeakMemoryMb();
  if (final_weights != nullptr) {
    PSRING_ASSIGN_OR_RETURN(*final_weights, FinalWeights());
    const ConstSpan tables = rows_->Local();
    final_weights->insert(final_weights->end(), tables.floats(), tables.floats() + tables.count);
  }
  return absl::OkStatus();
}

// The initial or loaded weights, on every rank. Returns the first step.
absl::StatusOr<int64_t> Training::Start() {
  std::vector<float> initial = InitialWeights(), whole;
  PSRING_ASSIGN_OR_RETURN(const Checkpointer::Loaded loaded,
                          checkpointer_->Load(shards_weights() ? whole : initial));
  std::vector<ConstSpan> slots;
  for (const std::vector<float>& slot : loaded.state.slots) slots.emplace_back(slot.data(), slot.size());
  compute_->Copy(memory_->weights().device.data, initial.data(), initial.size() * sizeof(float));
  PSRING_RETURN_IF_ERROR(buffers_->Load(loaded.state.buffers));
  PSRING_RETURN_IF_ERROR(compute_->Synchronize());
  TrainingState state = memory_->State();
  if (options_.broadcast_buffers == "true") state.buffers = buffers_->view();
  state.step = resume_.plan.step;
  state.samples = resume_.plan.samples;
  state.beyond = resume_.plan.beyond;
  state.has_slots = resume_.plan.with_slots;
  state.slots = slots;
  state.has_whole_weights = worker_.resume != nullptr;
  state.whole_weights = {whole.data(), whole.size()};
  state.row_arrays = loaded.row_arrays;
  state.residual = {loaded.residual.data(), loaded.residual.size()};
  PSRING_ASSIGN_OR_RETURN(const int64_t first, strategy_.sync->Start(state));
  PSRING_RETURN_IF_ERROR(rows_->Start({.seed = options_.seed,
                                       .arrays = loaded.row_arrays,
                                       .rows = loaded.state.rows,
                                       .step = resume_.plan.step,
                                       .samples = resume_.plan.samples}));
  return first;
}

absl::Status Training::Steps(int64_t first) {
  clock_->BeginAt(first);
  if (first + resume_.sample_shift > 0) sampler_->SeekTo(first + resume_.sample_shift);
  while (true) {
    const int64_t step = clock_->next();
    const absl::StatusOr<bool> went_back = AwaitBarrier();
    if (!went_back.ok()) return AtStep(step, went_back.status());
    if (*went_back) continue;
    if (clock_->is_over()) return absl::OkStatus();
    if (options_.align_steps) PSRING_RETURN_IF_ERROR(worker_.begin_together());
    const int64_t done_before = StepsDone(), checkpoint_before = clock_->checkpoint_step();
    absl::StatusOr<StepRecord> record = Step(step);
    if (!record.ok()) return AtStep(step, record.status());
    PSRING_RETURN_IF_ERROR(Finish(step, done_before, *std::move(record)));
    if (absl::Status kept = checkpointer_->SaveIfDue(checkpoint_before); !kept.ok())
      return AtStep(step, kept);
    if (clock_->next() <= step) RemoveRecordsFrom(clock_->next());
  }
}

// The barriers before the first step, before the first measured step and after the last step, so that no
// worker collects the weights before the last push. True: training has gone back to an earlier step.
absl::StatusOr<bool> Training::AwaitBarrier() {
  const int64_t step = clock_->next();
  const bool over = clock_->is_over();
  // A worker whose gradient came too late may skip the first measured step, but not the barrier before it.
  const bool begins_measuring = !is_measuring_ && step >= plan_.warmup_steps;
  if (step > 0 && !begins_measuring && !over) return false;
  const BarrierPoint point = over               ? BarrierPoint::kEnd
                             : begins_measuring ? BarrierPoint::kFirstMeasuredStep
                                                : BarrierPoint::kFirstStep;
  if (strategy_.barrier == nullptr) {
    PSRING_RETURN_IF_ERROR(worker_.barrier());
  } else {
    PSRING_ASSIGN_OR_RETURN(const std::optional<int64_t> back, strategy_.barrier->Await(point));
    if (back.has_value()) {
      clock_->GoBackTo(*back);
      sampler_->SeekTo(*back + resume_.sample_shift);
      PSRING_RETURN_IF_ERROR(buffers_->Restore(*back));
      RemoveRecordsFrom(*back);
      return true;
    }
  }
  is_measuring_ = is_measuring_ || begins_measuring;
  return false;
}

// Draws samples, pulls their rows, runs the program, and finishes what it has begun: sums and updates.
absl::StatusOr<StepRecord> Training::Step(int64_t step) {
  PSRING_RETURN_IF_ERROR(buffers_->Keep(step));
  const int64_t begin_ns = worker_.trace.Now();
  const ReplicaPart::Traffics traffic_before = part_.traffic();
  const SampledStep drawn = ForBackward(sampler_->Next());
  const StepInfo info{.step = step,
                      .samples = drawn.samples,
                      .machine_samples = drawn.machine_samples,
                      .global_samples = drawn.global_samples,
                      .global_samples_before = clock_->samples(),
                      .is_repeated = executor_->Repeats(drawn.global_samples)};

  PSRING_RETURN_IF_ERROR(rows_->Pull(step, drawn));
  const bool flushes = executor_->flushes();
  if (flushes) PSRING_RETURN_IF_ERROR(strategy_.sync->BeginStep(info));
  waits_.clear();
  PSRING_RETURN_IF_ERROR(executor_->Run(part_.train(), drawn, info, step + resume_.sample_shift));
  PSRING_RETURN_IF_ERROR(PrefetchNext());  // FinishStep waits for the GPU
  PSRING_RETURN_IF_ERROR(rows_->Push(info));
  PSRING_ASSIGN_OR_RETURN(StepReport report,
                          flushes ? strategy_.sync->FinishStep() : executor_->TakeReport());
  PSRING_RETURN_IF_ERROR(rows_->Finish(info, report));
  if (part_.has_stages()) PSRING_RETURN_IF_ERROR(FinishStages(report));
  PSRING_RETURN_IF_ERROR(compute_->Synchronize());
  if (!part_.has_stages()) {
    const int64_t computed_ns = worker_.trace.Now();
    PSRING_ASSIGN_OR_RETURN(score_, part_.Score(executor_->score()));
    if (part_.has_segments()) report.exposed_ns += worker_.trace.Now() - computed_ns;
  }

  const int64_t end_ns = worker_.trace.Now();
  const ReplicaPart::Traffics traffic = part_.traffic() - traffic_before;
  report.traffic = report.traffic + traffic.all;
  PSRING_RETURN_IF_ERROR(Advance(step, report));
  StepRecord record = recorder_->RecordOf(Measured(info, std::move(report), begin_ns, end_ns));
  record.sequence_tx_bytes = traffic.sequences.payload_tx_bytes;
  if (part_.model_part() != nullptr) {
    record.tensor_tx_bytes = traffic.tensors.payload_tx_bytes;
    record.stage_tx_bytes = (traffic.all - traffic.tensors - traffic.sequences).payload_tx_bytes;
  }
  return record;
}

// After the strategy's FinishStep: this rank's messages, then the loss, for which all wait. If servers count
// updates, those of the first stage count for the replica, so that all of its ranks end with the same step.
absl::Status Training::FinishStages(StepReport& report) {
  PSRING_RETURN_IF_ERROR(compute_->Synchronize());
  const int64_t begin_ns = worker_.trace.Now();
  PSRING_RETURN_IF_ERROR(executor_->FinishMessages(*part_.replica()));
  PSRING_ASSIGN_OR_RETURN(score_, part_.Score(executor_->score()));
  if (strategy_row_.asynchronous()) PSRING_RETURN_IF_ERROR(part_.replica()->Broadcast(0, &report.version, 1));
  waits_.push_back({begin_ns, worker_.trace.Now()});
  return absl::OkStatus();
}

// One batch per backward pass. The replicas of data-parallel draw micro-batches, which are computed together.
SampledStep Training::ForBackward(SampledStep drawn) const {
  if (replicas_ == nullptr) return drawn;
  std::vector<std::vector<int64_t>> batches(static_cast<size_t>(options_.micro_batches));
  for (size_t i = 0; i < drawn.batches.size(); ++i) {
    std::vector<int64_t>& batch = batches[i % batches.size()];
    batch.insert(batch.end(), drawn.batches[i].begin(), drawn.batches[i].end());
  }
  drawn.batches = std::move(batches);
  return drawn;
}

// Uploads the next step's first batch while the GPU computes this step.
absl::Status Training::PrefetchNext() {
  if (rows_->touched() != nullptr || !executor_->prefetches()) return absl::OkStatus();
  return executor_->Prefetch(part_.train(), ForBackward(sampler_->Peek()).batches.front());
}

// To the next step, which is not step + 1 if a server went back or gradients came too late.
absl::Status Training::Advance(int64_t step, const StepReport& report) {
  clock_->Finish(report);
  if (clock_->next() != step + 1) sampler_->SeekTo(clock_->next() + resume_.sample_shift);
  return clock_->next() <= step ? buffers_->Restore(clock_->next()) : absl::OkStatus();
}

// The work after a step, outside its measured time.
absl::Status Training::Finish(int64_t step, int64_t done_before, StepRecord record) {
  if (!std::isfinite(record.loss)) {
    return AtStep(step, absl::OutOfRangeError("training diverged: the loss is not finite; a lower --lr or "
                                              "--momentum may help"));
  }
  if (options_.check_replicas) {
    PSRING_ASSIGN_OR_RETURN(record.weights_hash, HashOfWeights());
    const ConstSpan tables = rows_->Local();
    if (tables.count > 0) record.weights_hash += HashBytes(tables.data, tables.bytes());
  }
  recorder_->Count(record);
  const int64_t done = StepsDone(), every = options_.eval_every;
  if (evaluates() && every > 0 && done / every > done_before / every && done < plan_.total_steps()) {
    PSRING_RETURN_IF_ERROR(KeepSnapshot());
  }
  if (!part_.begins_replica()) record.samples = 0;  // counted by the rank that does
  worker_.on_step(record);
  worker_.on_progress(done, plan_.total_steps(), record.loss);
  return worker_.objection();
}

// Steps from `step` on are repeated and count once.
void Training::RemoveRecordsFrom(int64_t step) {
  recorder_->RemoveFrom(step, clock_->samples());
  is_measuring_ = is_measuring_ && step > plan_.warmup_steps;
}

absl::StatusOr<RankResult> RunWorker(const TrainingOptions& options, Worker& worker,
                                     std::vector<float>* final_weights) {
  absl::StatusOr<std::unique_ptr<Training>> training = Training::Create(options, worker);
  if (!training.ok() && worker.sequence != nullptr) worker.sequence->Abort(training.status());
  if (!training.ok() && worker.pipeline != nullptr) {  // the others may wait for this rank's cuts
    worker.pipeline->Abort(training.status());
    if (worker.group != nullptr) worker.group->Abort(training.status());
  }
  PSRING_RETURN_IF_ERROR(training.status());
  return (*training)->Run(final_weights);
}

}  // namespace psring
