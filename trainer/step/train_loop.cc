// The straight path of a training: its steps.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/io/hash.h"
#include "trainer/step/training.h"

namespace psring {
namespace {

double Milliseconds(int64_t nanos) { return nanos * 1e-6; }

absl::Status AtStep(int64_t step, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("step ", step, ": ", status.message()));
}

}  // namespace

Training::~Training() {
  strategy_.reset();
  compute_.reset();
}

absl::StatusOr<RankResult> Training::Run(std::vector<float>* final_weights) {
  std::vector<float> initial = model_->InitialWeights(options_.seed);
  if (worker_.resume != nullptr) PSRING_RETURN_IF_ERROR(LoadCheckpoint(initial));
  std::vector<ConstSpan> slots;
  for (const std::vector<float>& slot : loaded_.slots) slots.emplace_back(slot.data(), slot.size());
  compute_->Copy(weights_.data(), initial.data(), weights_.bytes());
  PSRING_RETURN_IF_ERROR(compute_->Synchronize());
  const HostView weights = HostView::Of(weights_, host_weights_);
  const Buffer& seen = weights.is_one() ? weights_ : host_weights_;
  PSRING_RETURN_IF_ERROR(strategy_->Start({.weights = weights,
                                           .gradient = gradient_,
                                           .weights_fd = seen.shared_fd(),
                                           .gradient_fd = gradient_fd_,
                                           .weights_on_gpu = OnGpu(weights_),
                                           .gradient_on_gpu = OnGpu(own_gradient_),
                                           .step = resume_.step,
                                           .samples = resume_.samples,
                                           .beyond = resume_.beyond,
                                           .has_slots = resume_.with_slots,
                                           .slots = slots,
                                           .residual = {residual_.data(), residual_.size()}}));
  loaded_ = {};
  residual_ = {};
  if (!resume_.ready_order.empty()) PSRING_RETURN_IF_ERROR(RebuildBuckets(resume_.ready_order));

  if (absl::Status trained = Steps(); !trained.ok()) {
    strategy_->Abort(trained);  // or the peers would wait for their deadline
    LeavePartForTheEnd();
    return trained;
  }
  if (IsAsynchronous(*strategy_row_)) {  // everybody's updates are in what is collected
    version_ = plan_.total_steps() * worker_.world_size;
    global_samples_ = SamplesOf(version_);
  }
  PSRING_RETURN_IF_ERROR(LastCheckpoint(next_step_));
  PSRING_RETURN_IF_ERROR(strategy_->Collect(weights_.span()));
  PSRING_RETURN_IF_ERROR(Describe());
  if (options_.evaluate && worker_.rank == 0) {
    PSRING_RETURN_IF_ERROR(KeepSnapshot(plan_.total_steps()));
    PSRING_RETURN_IF_ERROR(ScoreCurve());
  }
  result_.peak_memory_mb = PeakMemoryMb();
  if (final_weights != nullptr) {
    PSRING_ASSIGN_OR_RETURN(const ConstSpan on_host, WeightsOnHost());
    final_weights->assign(on_host.floats(), on_host.floats() + on_host.count);
  }
  return std::move(result_);
}

absl::Status Training::Steps() {
  bool warm = false;
  // Beyond a checkpoint's where a server has gone on with the job already.
  int64_t next = std::max(resume_.step, strategy_->start_step());
  global_samples_ = SamplesBefore(next);
  version_ = resume_.step * worker_.world_size + resume_.beyond;
  if (next + sample_shift_ > 0) sampler_->SeekTo(next + sample_shift_);
  int64_t done = StepsDone(next);
  while (true) {
    const int64_t step = next;
    const bool over = IsOver(step);
    // A worker whose gradient came too late may skip the first measured step, but not the barrier before it.
    const bool warmed_up = !warm && step >= plan_.warmup_steps;
    if (step == 0 || warmed_up || over) {
      // At the end, too: nobody's last push may come after somebody's Collect.
      const absl::StatusOr<std::optional<int64_t>> back = AwaitStage(over ? 2 : warmed_up ? 1 : 0);
      if (!back.ok()) return AtStep(step, back.status());
      if (back->has_value()) {
        next = **back;
        global_samples_ = SamplesBefore(next);
        sampler_->SeekTo(next + sample_shift_);
        GoBackTo(next);
        done = StepsDone(next);
        warm = warm && next > plan_.warmup_steps;
        continue;
      }
    }
    next_step_ = step;
    if (over) return absl::OkStatus();
    if (options_.align_steps) PSRING_RETURN_IF_ERROR(worker_.begin_together());
    warm = warm || warmed_up;
    absl::StatusOr<StepRecord> record = Step(step, next);
    if (!record.ok()) return AtStep(step, record.status());
    if (!std::isfinite(record->loss)) {
      return AtStep(step, absl::OutOfRangeError("training diverged: the loss is not finite; a lower --lr or "
                                                "--momentum may help"));
    }
    if (!has_rebuilt_) {
      if (absl::Status rebuilt = RebuildBuckets(TensorsInOrder(model_->parameters(), pipeline_->order()));
          !rebuilt.ok())
        return AtStep(step, rebuilt);
    }
    if (options_.check_replicas) {
      PSRING_ASSIGN_OR_RETURN(const ConstSpan weights, WeightsOnHost());
      record->weights_hash = HashBytes(weights.data, weights.bytes());
    }
    Count(*record);
    const int64_t done_before = done;
    done = StepsDone(next);
    const bool evaluates = options_.evaluate && worker_.rank == 0 && options_.eval_every > 0;
    if (evaluates && done / options_.eval_every > done_before / options_.eval_every &&
        done < plan_.total_steps()) {
      PSRING_RETURN_IF_ERROR(KeepSnapshot(done));
    }
    worker_.on_step(*record);
    worker_.on_progress(done, plan_.total_steps(), record->loss);
    PSRING_RETURN_IF_ERROR(worker_.objection());
    if (absl::Status kept =
            CheckpointIfDue(shares_steps_ ? done_before : step, shares_steps_ ? done : next, next);
        !kept.ok())
      return AtStep(step, kept);
    if (next <= step) {
      GoBackTo(next);
      warm = warm && next > plan_.warmup_steps;
    }
  }
}

// `order`: in which backward makes gradients ready, as it was in the first step; of a run that goes on,
// before its own.
absl::Status Training::RebuildBuckets(std::vector<int> order) {
  has_rebuilt_ = true;
  const ParameterLayout& layout = model_->parameters();
  PSRING_ASSIGN_OR_RETURN(result_.ddp.has_rebuilt_buckets, strategy_->AgreeOnOrder(order));
  for (const int tensor : order) {
    result_.ddp.ready_order.push_back(layout.tensors()[static_cast<size_t>(tensor)].name);
  }
  if (!result_.ddp.has_rebuilt_buckets) return absl::OkStatus();
  buckets_ = PlanBuckets(layout, order, BucketSizesAsked());
  result_.ddp.rebuilt_bucket_bytes = BytesOf(buckets_);
  strategy_->Rebuild(buckets_);
  return absl::OkStatus();
}

// A server keeps a version of each bucket, and several have cut them up among themselves, so they are planned
// once: in the order in which gradients become ready behind one sample, before this worker joins.
absl::Status Training::PlanBucketsByTrial() {
  const std::vector<float> initial = model_->InitialWeights(options_.seed);
  compute_->Copy(weights_.data(), initial.data(), weights_.bytes());
  PSRING_ASSIGN_OR_RETURN(const Batch batch, batches_->Load(worker_.data.train, {0}, *compute_));
  batches_->ClearScore(*compute_);
  model_->Forward(weights_.span(), batch, batches_->score(), *compute_);
  std::vector<ReadyRange> order;
  model_->Backward(weights_.span(), batch, gradient_.device, *compute_,
                   [&](ReadyRange range) { order.push_back(range); });
  PSRING_RETURN_IF_ERROR(compute_->Synchronize());
  const ParameterLayout& layout = model_->parameters();
  buckets_ = PlanBuckets(layout, TensorsInOrder(layout, order), BucketSizesAsked());
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int64_t>> Training::AwaitStage(int stage) {
  PSRING_ASSIGN_OR_RETURN(const std::optional<SyncStrategy::Stage> awaited, strategy_->AwaitStage(stage));
  if (awaited.has_value()) return awaited->goes_back_to;
  PSRING_RETURN_IF_ERROR(worker_.barrier());
  return std::nullopt;
}

// What was made from `step` on is made once more, and counts once.
void Training::GoBackTo(int64_t step) {
  while (!made_.empty() && made_.back().step >= step) {
    result_.samples -= made_.back().samples;
    made_.pop_back();
  }
  std::erase_if(snapshots_,
                [this](const WeightsCopy& snapshot) { return snapshot.point.samples > global_samples_; });
  snapshot_made_ = std::min(snapshot_made_, made_.size());
}

bool Training::IsOver(int64_t step) const {
  if (!shares_steps_) return step >= plan_.total_steps();
  return SharedStepsAreOver(version_, worker_.world_size, plan_.total_steps());
}

// Of all workers' work, in steps of a worker.
int64_t Training::StepsDone(int64_t next) const {
  if (!IsAsynchronous(*strategy_row_)) return next;
  return std::min(version_ / worker_.world_size, plan_.total_steps());
}

// The straight path. `next`: the step to go on with.
absl::StatusOr<StepRecord> Training::Step(int64_t step, int64_t& next) {
  const Trace& trace = worker_.trace;
  StepRecord record{.rank = worker_.rank, .step = step, .warmup = step < plan_.warmup_steps};
  record.begin_ns = trace.Now();
  SampledStep drawn = sampler_->Next();
  StepInfo info{.step = step,
                .samples = drawn.samples,
                .global_samples = drawn.global_samples,
                .global_samples_before = global_samples_};
  const std::vector<std::vector<int64_t>> batches = BatchesOf(std::move(drawn));
  const auto last_pass = step_passes_.find({batches.size() - 1, info.global_samples});
  info.is_repeated = last_pass != step_passes_.end() && last_pass->second.repeats();

  PSRING_RETURN_IF_ERROR(strategy_->BeginStep(info));
  pipeline_->BeginStep();
  batches_->ClearScore(*compute_);
  stamps_.assign(batches.size(), {});
  for (size_t i = 0; i < batches.size(); ++i) {
    PSRING_ASSIGN_OR_RETURN(const Batch batch, batches_->Load(worker_.data.train, batches[i], *compute_));
    PSRING_RETURN_IF_ERROR(Compute(i, batch, info));
  }
  batches_->DownloadScore(*compute_);
  PSRING_CHECK(info.is_repeated || pipeline_->all_ready());
  PSRING_ASSIGN_OR_RETURN(StepReport report, strategy_->FinishStep());
  PSRING_RETURN_IF_ERROR(compute_->Synchronize());
  const int64_t updated_ns = trace.Now();
  record.step_ms = Milliseconds(updated_ns - record.begin_ns);

  ComputeTimes times;
  for (const Stamps& stamps : stamps_) {
    AddSpan(SpanKind::kForward, step, stamps.forward_ns, stamps.backward_ns);
    AddSpan(SpanKind::kBackward, step, stamps.backward_ns, stamps.end_ns);
    times.forward_ns += stamps.backward_ns - stamps.forward_ns;
    times.backward_ns += stamps.end_ns - stamps.backward_ns;
    times.last_backward = {stamps.backward_ns, stamps.end_ns};
  }
  const int64_t end_ns = times.last_backward.second;
  if (report.exposed_ns > 0) AddSpan(SpanKind::kExposed, step, end_ns, end_ns + report.exposed_ns);
  const BatchScore score = batches_->downloaded_score();
  next = report.next_step >= 0 ? report.next_step : step + 1;
  if (IsAsynchronous(*strategy_row_)) {
    version_ = report.version;
    global_samples_ = SamplesOf(version_);
  } else {
    global_samples_ = SamplesBefore(next);
  }
  if (next != step + 1) sampler_->SeekTo(next + sample_shift_);
  std::vector<std::pair<int64_t, int64_t>> in_flight;
  for (const BucketRecord& bucket : report.buckets) in_flight.emplace_back(bucket.begin_ns, bucket.end_ns);
  record.samples = info.samples;
  record.dropped = report.dropped;
  record.compute_ms = Milliseconds(times.forward_ns + times.backward_ns);
  record.delay_ms = Milliseconds(delay_->slept_ns());
  record.comm_busy_ms = Milliseconds(BusyNanos(in_flight));
  if (!record.warmup) ddp_.Add(times, std::move(in_flight));
  record.exposed_comm_ms = Milliseconds(report.exposed_ns);
  record.payload_tx_bytes = report.traffic.payload_tx_bytes;
  record.payload_rx_bytes = report.traffic.payload_rx_bytes;
  record.loss = info.samples > 0 ? score.loss_sum / info.samples : 0;
  if (replicas_ != nullptr) {
    DataParallelFigures figures = replicas_->Take();
    figures.update_ms = Milliseconds(updated_ns - end_ns);
    Describe(figures, record);
  }
  record.buckets = std::move(report.buckets);
  return record;
}

// A batch for each Backward. Those of replicas, which micro-batches are drawn for, are computed together.
std::vector<std::vector<int64_t>> Training::BatchesOf(SampledStep drawn) const {
  if (replicas_ == nullptr) return std::move(drawn.batches);
  std::vector<std::vector<int64_t>> batches(static_cast<size_t>(options_.accumulate));
  for (size_t i = 0; i < drawn.batches.size(); ++i) {
    std::vector<int64_t>& batch = batches[i % batches.size()];
    batch.insert(batch.end(), drawn.batches[i].begin(), drawn.batches[i].end());
  }
  return batches;
}

absl::Status Training::Compute(size_t batch_of_step, const Batch& batch, const StepInfo& info) {
  if (!strategy_->records_steps()) return ForwardAndBackward(batch_of_step, batch, info);
  absl::Status status;
  const auto enqueue = [&](const RecordedPass::Ready&) {
    status = ForwardAndBackward(batch_of_step, batch, info);
  };
  RecordedPass& pass = step_passes_[{batch_of_step, info.global_samples}];
  PSRING_RETURN_IF_ERROR(pass.Run(*compute_, enqueue, {}));
  return status;
}

absl::Status Training::ForwardAndBackward(size_t batch_of_step, const Batch& batch, const StepInfo& info) {
  Stamps& stamps = stamps_[batch_of_step];
  compute_->Stamp(stamps.forward_ns);
  if (batch_of_step == 0) delay_->Begin(info.step + sample_shift_);
  PSRING_RETURN_IF_ERROR(Forward(batch));
  delay_->Prolong();
  compute_->Stamp(stamps.backward_ns);
  // The last one hands finished buckets to the strategy on its way.
  PSRING_RETURN_IF_ERROR(Backward(static_cast<int>(batch_of_step), batch));
  compute_->Stamp(stamps.end_ns);
  if (batch_of_step + 1 == stamps_.size()) strategy_->FinishBackward();
  return absl::OkStatus();
}

absl::Status Training::Forward(const Batch& batch) {
  const auto enqueue = [&](const RecordedPass::Ready&) {
    model_->Forward(weights_.span(), batch, batches_->score(), *compute_);
  };
  if (RecordsPasses() && batch.size > 0) return forward_passes_[batch.size].Run(*compute_, enqueue, {});
  enqueue({});
  return absl::OkStatus();
}

// Leaves the sum of the gradients of the step's batches so far, added in order: the accumulated batches of a
// worker first, then the workers that micro-batches stand for, as a server in deterministic mode adds them.
// Only behind the last batch is a bucket complete.
absl::Status Training::Backward(int batch_of_step, const Batch& batch) {
  const int of_worker = batch_of_step % options_.accumulate;
  const bool first_worker = batch_of_step < options_.accumulate;
  const bool worker_done = of_worker + 1 == options_.accumulate;
  const bool step_done = batch_of_step + 1 == options_.accumulate * options_.micro_batches;
  const Span sum = first_worker ? gradient_.device : worker_gradient_.span();
  const Span to = of_worker == 0 ? sum : micro_gradient_.span();
  const RecordedPass::Ready on_ready = [&](ReadyRange range) {
    const auto add = [&](Span into, Span from) {
      ops_->Add(into.Slice(range.first, range.count), from.Slice(range.first, range.count), *compute_);
    };
    if (of_worker > 0) add(sum, to);
    if (worker_done && !first_worker) add(gradient_.device, sum);
    delay_->Prolong();
    if (step_done) pipeline_->Ready(range);
    delay_->Resume();
  };
  const auto enqueue = [&](const RecordedPass::Ready& ready) {
    model_->Backward(weights_.span(), batch, to, *compute_, ready);
  };
  if (RecordsPasses() && batch.size > 0) {
    return backward_passes_[{batch_of_step, batch.size}].Run(*compute_, enqueue, on_ready);
  }
  enqueue(on_ready);
  return absl::OkStatus();
}

absl::StatusOr<RankResult> RunWorker(const TrainingOptions& options, Worker& worker,
                                     std::vector<float>* final_weights) {
  PSRING_ASSIGN_OR_RETURN(std::unique_ptr<Training> training, Training::Create(options, worker));
  return training->Run(final_weights);
}

}  // namespace psring
