#include "trainer/train_loop.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/reduce.h"
#include "trainer/batch_memory.h"
#include "trainer/bucket_pipeline.h"
#include "trainer/compute_delay.h"
#include "trainer/evaluation.h"
#include "trainer/model.h"
#include "trainer/replayed_model.h"
#include "trainer/sampler.h"
#include "trainer/sync_strategy.h"
#include "trainer/training_plan.h"

namespace psring {
namespace {

constexpr int kEvaluationBatch = 128;

double Milliseconds(int64_t nanos) { return nanos * 1e-6; }

absl::Status AtStep(int64_t step, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("step ", step, ": ", status.message()));
}

// One rank's training, from checked flags to a result.
class Training {
 public:
  static absl::StatusOr<std::unique_ptr<Training>> Create(const TrainingOptions& options, Worker& worker);

  absl::StatusOr<RankResult> Run(std::vector<float>* final_weights);

 private:
  Training(const TrainingOptions& options, Worker& worker) : options_(options), worker_(worker) {}

  absl::Status AllocateGradient(size_t bytes);
  absl::Status Steps();
  absl::StatusOr<std::optional<int64_t>> AwaitStage(int stage);
  void GoBackTo(int64_t step);
  bool IsOver(int64_t step) const;
  int64_t StepsDone(int64_t next) const;
  absl::StatusOr<StepRecord> Step(int64_t step, int64_t& next);
  std::vector<SampledBatch> Draw(StepInfo& info);
  void Backward(int m, const Batch& batch);
  void AddSpan(SpanKind kind, int64_t step, int64_t begin_ns, int64_t end_ns);
  absl::StatusOr<ConstSpan> WeightsOnHost();
  absl::Status KeepSnapshot(int64_t steps_done);
  absl::Status ScoreCurve();
  void Count(const StepRecord& record);
  absl::Status Describe();

  const TrainingOptions& options_;
  Worker& worker_;
  const StrategyRow* strategy_row_ = nullptr;
  StepPlan plan_;
  int64_t drawn_batch_ = 0;  // samples that all workers draw for a step; those of spare workers are dropped
  std::vector<Bucket> buckets_;

  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Model> model_;
  Buffer weights_, own_gradient_, micro_gradient_;
  Buffer host_weights_, host_gradient_;  // where the host does not read the device's memory
  HostView gradient_;
  int gradient_fd_ = -1;
  std::optional<BatchMemory> batches_;
  bool server_shares_ = false;  // a parameter server on this host may work in our buffers
  std::unique_ptr<SyncStrategy> strategy_;
  bool shares_steps_ = false;  // among workers that never wait for each other
  std::optional<BucketPipeline> pipeline_;
  std::vector<DistributedSampler> samplers_;  // one for each micro-batch
  std::optional<ComputeDelay> delay_;

  struct Stamps {
    int64_t forward_ns = 0, backward_ns = 0, end_ns = 0;
  };
  std::vector<Stamps> stamps_;  // of a step's micro-batches; the compute stream writes into them

  int64_t global_samples_ = 0;  // in all updates so far
  int64_t version_ = 0;         // asynchronous: updates in this rank's weights, those of all workers
  double trained_s_ = 0;
  std::vector<double> losses_;  // of this rank's steps
  struct Made {
    int64_t step;
    int64_t samples;  // that count
  };
  std::vector<Made> made_;       // beside losses_
  int64_t snapshot_losses_ = 0;  // there were so many when the last snapshot was taken
  std::vector<WeightsCopy> snapshots_;
  RankResult result_;
};

absl::StatusOr<std::unique_ptr<Training>> Training::Create(const TrainingOptions& options, Worker& worker) {
  auto training = std::unique_ptr<Training>(new Training(options, worker));
  Training& t = *training;
  const Dataset& data = worker.data.train;
  Device& device = worker.device;

  // All that can be refused is refused before anything is allocated.
  PSRING_ASSIGN_OR_RETURN(t.strategy_row_, FindStrategy(options.strategy));
  PSRING_ASSIGN_OR_RETURN(const ModelRow model_row, ModelOf(options));
  PSRING_RETURN_IF_ERROR(CheckStrategy(options, *t.strategy_row_, worker.world_size));
  PSRING_ASSIGN_OR_RETURN(t.plan_, PlanSteps(options, data.count(), worker.world_size));
  t.drawn_batch_ = t.plan_.global_batch + int64_t{options.batch} * SpareWorkers(options.strategy);
  PSRING_ASSIGN_OR_RETURN(const UpdatePlan updates,
                          PlanUpdates(options, *t.strategy_row_, model_row, t.plan_, data.count()));

  if (worker.rank == 0) {
    for (const std::string& warning : PlanWarnings(*t.strategy_row_, updates)) worker.on_warning(warning);
  }

  const int max_batch = std::max(options.batch, kEvaluationBatch);
  t.compute_ = device.NewStream(StreamKind::kCompute, "compute");
  PSRING_ASSIGN_OR_RETURN(t.ops_, MakeOps(device, options.threads));
  PSRING_ASSIGN_OR_RETURN(t.model_, model_row.make(data, max_batch, device, *t.ops_));
  const size_t parameters = t.model_->parameters().count();
  if (options.evaluate && worker.rank == 0) {
    PSRING_RETURN_IF_ERROR(CheckSnapshots(options.eval_every, t.plan_.total_steps(), parameters));
  }
  // A parameter server on this host works in these buffers itself.
  t.server_shares_ = t.strategy_row_->needs == Needs::kParameterServer && PayloadOf(options) != "grpc";
  const size_t bytes = parameters * sizeof(float);
  PSRING_ASSIGN_OR_RETURN(t.weights_,
                          t.server_shares_ ? device.AllocateShared(bytes) : device.Allocate(bytes));
  PSRING_RETURN_IF_ERROR(t.AllocateGradient(bytes));
  if (options.micro_batches > 1) {
    PSRING_ASSIGN_OR_RETURN(t.micro_gradient_, device.Allocate(parameters * sizeof(float)));
  }
  PSRING_ASSIGN_OR_RETURN(t.host_weights_, AllocateHostSide(device, t.weights_));
  PSRING_ASSIGN_OR_RETURN(t.batches_, BatchMemory::Create(data, max_batch, device));

  t.buckets_ = PlanBuckets(t.model_->parameters(),
                           {.first_mb = std::min(1.0, options.bucket_mb), .others_mb = options.bucket_mb});
  PSRING_ASSIGN_OR_RETURN(const DType wire, ParseDType(options.wire));
  PSRING_ASSIGN_OR_RETURN(t.strategy_,
                          t.strategy_row_->make({.algorithm = AlgorithmOf(*t.strategy_row_, options.strategy),
                                                 .rank = worker.rank,
                                                 .world_size = worker.world_size,
                                                 .device = device,
                                                 .ops = *t.ops_,
                                                 .compute = *t.compute_,
                                                 .buckets = t.buckets_,
                                                 .optimizer = updates.optimizer,
                                                 .schedule = updates.schedule,
                                                 .trace = worker.trace,
                                                 .timeout = absl::Seconds(options.timeout_s),
                                                 .threads = options.threads,
                                                 .group = worker.group,
                                                 .client = worker.client,
                                                 .deterministic = options.deterministic,
                                                 .serial = options.ps_schedule == "serial",
                                                 .clip_norm = options.clip_norm,
                                                 .staleness_lr = options.staleness_lr == "inverse",
                                                 .wire = wire}));
  t.shares_steps_ = AlgorithmOf(*t.strategy_row_, options.strategy) == "async";
  t.pipeline_.emplace(t.buckets_, *t.compute_, *t.strategy_);

  PSRING_ASSIGN_OR_RETURN(t.delay_, ComputeDelay::Create(options, worker.rank, MonotonicNanos));
  if (t.delay_->active() && device.name() != "cpu") {
    return absl::InvalidArgumentError(
        absl::StrCat("--straggler and --jitter_ms are for --device cpu, where computing is done when a call "
                     "returns; this is ",
                     device.name()));
  }

  // Micro-batch m of M is what rank m of M would have drawn.
  for (int m = 0; m < options.micro_batches; ++m) {
    t.samplers_.emplace_back(SamplerOptions{.count = data.count(),
                                            .rank = worker.rank * options.micro_batches + m,
                                            .world_size = worker.world_size * options.micro_batches,
                                            .batch = options.batch,
                                            .seed = options.seed});
  }
  return training;
}

// What is sent lies in memory that peers of this host may read in place: the server, or the ranks of the
// group.
absl::Status Training::AllocateGradient(size_t bytes) {
  const bool group_shares = worker_.group != nullptr && worker_.registered != nullptr;
  PSRING_ASSIGN_OR_RETURN(own_gradient_, server_shares_ || group_shares ? worker_.device.AllocateShared(bytes)
                                                                        : worker_.device.Allocate(bytes));
  if (worker_.group != nullptr || worker_.client != nullptr) {
    PSRING_ASSIGN_OR_RETURN(host_gradient_, AllocateHostSide(worker_.device, own_gradient_));
  }
  Buffer& seen = host_gradient_.data() != nullptr ? host_gradient_ : own_gradient_;
  gradient_ = HostView::Of(own_gradient_, host_gradient_);
  gradient_fd_ = seen.shared_fd();
  if (!group_shares) return absl::OkStatus();
  worker_.registered->push_back(std::move(seen));
  return worker_.group->Register(worker_.registered->back());
}

absl::StatusOr<RankResult> Training::Run(std::vector<float>* final_weights) {
  const std::vector<float> initial = model_->InitialWeights(options_.seed);
  compute_->Copy(weights_.data(), initial.data(), weights_.bytes());
  PSRING_RETURN_IF_ERROR(compute_->Synchronize());
  const HostView weights = HostView::Of(weights_, host_weights_);
  const Buffer& seen = weights.is_one() ? weights_ : host_weights_;
  PSRING_RETURN_IF_ERROR(strategy_->Start({.weights = weights,
                                           .gradient = gradient_,
                                           .weights_fd = seen.shared_fd(),
                                           .gradient_fd = gradient_fd_}));

  if (absl::Status trained = Steps(); !trained.ok()) {
    strategy_->Abort(trained);  // or the peers would wait for their deadline
    return trained;
  }
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
  int64_t next = strategy_->start_step(), done = 0;
  if (next > 0) {  // of a job that was going on already
    global_samples_ = next * plan_.global_batch;
    for (DistributedSampler& sampler : samplers_) sampler.SeekTo(next);
  }
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
        global_samples_ -= (step - next) * plan_.global_batch;
        for (DistributedSampler& sampler : samplers_) sampler.SeekTo(next);
        GoBackTo(next);
        done = StepsDone(next);
        warm = warm && next > plan_.warmup_steps;
        continue;
      }
    }
    if (over) return absl::OkStatus();
    if (options_.align_steps) PSRING_RETURN_IF_ERROR(worker_.barrier());
    warm = warm || warmed_up;
    absl::StatusOr<StepRecord> record = Step(step, next);
    if (!record.ok()) return AtStep(step, record.status());
    if (!std::isfinite(record->loss)) {
      return AtStep(step, absl::OutOfRangeError("training diverged: the loss is not finite; a lower --lr or "
                                                "--momentum may help"));
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
    if (next <= step) {
      GoBackTo(next);
      warm = warm && next > plan_.warmup_steps;
    }
  }
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
    losses_.pop_back();
  }
  std::erase_if(snapshots_,
                [this](const WeightsCopy& snapshot) { return snapshot.point.samples > global_samples_; });
  snapshot_losses_ = std::min(snapshot_losses_, static_cast<int64_t>(losses_.size()));
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
  StepInfo info{.step = step, .global_samples_before = global_samples_};
  const std::vector<SampledBatch> drawn = Draw(info);
  PSRING_RETURN_IF_ERROR(strategy_->BeginStep(info));
  pipeline_->BeginStep();
  batches_->ClearScore(*compute_);
  stamps_.assign(options_.micro_batches, {});
  for (int m = 0; m < options_.micro_batches; ++m) {
    PSRING_ASSIGN_OR_RETURN(const Batch batch,
                            batches_->Load(worker_.data.train, drawn[m].indices, *compute_));
    compute_->Stamp(stamps_[m].forward_ns);
    if (m == 0) delay_->Begin(step);
    model_->Forward(weights_.span(), batch, batches_->score(), *compute_);
    delay_->Prolong();
    compute_->Stamp(stamps_[m].backward_ns);
    Backward(m, batch);  // hands finished buckets to the strategy on its way
    compute_->Stamp(stamps_[m].end_ns);
  }
  batches_->DownloadScore(*compute_);
  PSRING_CHECK(pipeline_->all_ready());
  PSRING_ASSIGN_OR_RETURN(StepReport report, strategy_->FinishStep());
  PSRING_RETURN_IF_ERROR(compute_->Synchronize());
  record.step_ms = Milliseconds(trace.Now() - record.begin_ns);

  int64_t compute_ns = 0;
  for (const Stamps& stamps : stamps_) {
    AddSpan(SpanKind::kForward, step, stamps.forward_ns, stamps.backward_ns);
    AddSpan(SpanKind::kBackward, step, stamps.backward_ns, stamps.end_ns);
    compute_ns += stamps.end_ns - stamps.forward_ns;
  }
  const int64_t end_ns = stamps_.back().end_ns;
  if (report.exposed_ns > 0) AddSpan(SpanKind::kExposed, step, end_ns, end_ns + report.exposed_ns);
  const BatchScore score = batches_->downloaded_score();
  next = report.next_step >= 0 ? report.next_step : step + 1;
  if (IsAsynchronous(*strategy_row_)) {
    version_ = report.version;
    global_samples_ = version_ * options_.batch;
  } else {
    global_samples_ += (next - step) * info.global_samples * plan_.global_batch / drawn_batch_;
  }
  if (next != step + 1) {
    for (DistributedSampler& sampler : samplers_) sampler.SeekTo(next);
  }
  std::vector<std::pair<int64_t, int64_t>> in_flight;
  for (const BucketRecord& bucket : report.buckets) in_flight.emplace_back(bucket.begin_ns, bucket.end_ns);
  record.samples = info.samples;
  record.dropped = report.dropped;
  record.compute_ms = Milliseconds(compute_ns);
  record.delay_ms = Milliseconds(delay_->slept_ns());
  record.comm_busy_ms = Milliseconds(BusyNanos(std::move(in_flight)));
  record.exposed_comm_ms = Milliseconds(report.exposed_ns);
  record.payload_tx_bytes = report.traffic.payload_tx_bytes;
  record.payload_rx_bytes = report.traffic.payload_rx_bytes;
  record.loss = info.samples > 0 ? score.loss_sum / info.samples : 0;
  record.buckets = std::move(report.buckets);
  return record;
}

// The samples of all micro-batches of a step; completes `info`.
std::vector<SampledBatch> Training::Draw(StepInfo& info) {
  std::vector<SampledBatch> drawn;
  for (DistributedSampler& sampler : samplers_) {
    drawn.push_back(sampler.Next());
    info.samples += static_cast<int64_t>(drawn.back().indices.size());
    info.global_samples = drawn.back().global_samples;
  }
  return drawn;
}

// Leaves the sum of the gradients of micro-batches 0 to m, added in order, as a server in deterministic mode
// adds its workers'.
void Training::Backward(int m, const Batch& batch) {
  const bool only = options_.micro_batches == 1;
  model_->Backward(weights_.span(), batch, m == 0 ? gradient_.device : micro_gradient_.span(), *compute_,
                   [&](size_t first) {
                     delay_->Prolong();
                     if (only) pipeline_->LayerDone(first);
                     delay_->Resume();
                   });
  if (m > 0) ops_->Add(gradient_.device, micro_gradient_.span(), *compute_);
  if (!only && m + 1 == options_.micro_batches) pipeline_->LayerDone(0);
}

void Training::AddSpan(SpanKind kind, int64_t step, int64_t begin_ns, int64_t end_ns) {
  worker_.trace.Add({.kind = kind, .step = step, .begin_ns = begin_ns, .end_ns = end_ns});
}

void Training::Count(const StepRecord& record) {
  if (record.dropped) ++result_.dropped_gradients;
  losses_.push_back(record.loss);
  made_.push_back({record.step, record.warmup || record.dropped ? 0 : record.samples});
  trained_s_ += record.step_ms / 1000;
  if (!record.warmup) {
    if (!record.dropped) result_.samples += record.samples;
    result_.wall_s += record.step_ms / 1000;
  }
  for (const BucketRecord& bucket : record.buckets) {
    if (bucket.staleness < 0) continue;
    result_.pushes += bucket.pushes;
    result_.staleness_sum += bucket.staleness_sum;
    result_.staleness_max = std::max(result_.staleness_max, bucket.staleness);
  }
}

// The device has done all that was asked of it.
absl::StatusOr<ConstSpan> Training::WeightsOnHost() {
  const HostView view = HostView::Of(weights_, host_weights_);
  view.Download(*compute_);
  PSRING_RETURN_IF_ERROR(compute_->Synchronize());
  return ConstSpan(view.host);
}

absl::Status Training::KeepSnapshot(int64_t steps_done) {
  const bool ended = steps_done == plan_.total_steps();
  if (ended && IsAsynchronous(*strategy_row_)) {  // everybody's updates are in what was collected
    version_ = steps_done * worker_.world_size;
    global_samples_ = version_ * options_.batch;
  }
  auto since = losses_.begin() + snapshot_losses_;
  if (since == losses_.end() && !losses_.empty()) --since;  // others have ended the training: the loss before
  snapshot_losses_ = static_cast<int64_t>(losses_.size());
  PSRING_ASSIGN_OR_RETURN(const ConstSpan weights, WeightsOnHost());
  snapshots_.push_back({.point = {.samples = global_samples_,
                                  .updates = IsAsynchronous(*strategy_row_) ? version_ : steps_done,
                                  .wall_s = trained_s_,
                                  .train_loss = std::accumulate(since, losses_.end(), 0.0) /
                                                std::max<int64_t>(1, losses_.end() - since)},
                        .weights = {weights.floats(), weights.floats() + weights.count}});
  return absl::OkStatus();
}

absl::Status Training::ScoreCurve() {
  const Dataset& test = worker_.data.test;
  for (WeightsCopy& snapshot : snapshots_) {
    const Span weights = gradient_.device;  // which is no longer needed for gradients
    compute_->Copy(weights.data, snapshot.weights.data(), weights.bytes());
    PSRING_ASSIGN_OR_RETURN(const BatchScore score,
                            Evaluate(*model_, weights, test, kEvaluationBatch, *batches_, *compute_));
    snapshot.point.test_loss = score.loss_sum / test.count();
    snapshot.point.test_accuracy = static_cast<double>(score.correct) / test.count();
    result_.curve.push_back(snapshot.point);
    worker_.on_evaluation(snapshot.point);
  }
  return absl::OkStatus();
}

// All of the result that is known without the curve.
absl::Status Training::Describe() {
  result_.rank = worker_.rank;
  result_.world_size = worker_.world_size;
  result_.strategy = options_.strategy;
  result_.device = worker_.device.name();
  result_.ops = ops_->name();
  result_.algorithm = AlgorithmOf(*strategy_row_, options_.strategy);
  // One worker of a group has nobody to talk to, and does not ask for a group.
  if (strategy_row_->needs == Needs::kProcessGroup && worker_.group != nullptr) {
    result_.backend = worker_.group->info().backend;
    result_.algorithm = worker_.group->info().algorithm;
    result_.transport = worker_.group->info().transport;
    result_.payload = worker_.group->info().transport;
  }
  if (strategy_row_->needs == Needs::kParameterServer) {
    result_.backend = "native";
    result_.transport = worker_.client->payload();
    result_.payload = worker_.client->payload();
    result_.placement = options_.server_placement;
  }
  result_.parameters = static_cast<int64_t>(weights_.span().count);
  result_.global_batch = plan_.global_batch;
  result_.steps = plan_.steps;
  for (const Bucket& bucket : buckets_) result_.bucket_elements.push_back(bucket.count);
  const int64_t made = static_cast<int64_t>(losses_.size());
  const auto tail = losses_.end() - std::min(made, std::max<int64_t>(1, made / 10));
  result_.final_loss = std::accumulate(tail, losses_.end(), 0.0) / std::max<int64_t>(1, losses_.end() - tail);
  PSRING_ASSIGN_OR_RETURN(const ConstSpan weights, WeightsOnHost());
  result_.weights_hash = HashBytes(weights.data, weights.bytes());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RankResult> RunWorker(const TrainingOptions& options, Worker& worker,
                                     std::vector<float>* final_weights) {
  PSRING_ASSIGN_OR_RETURN(std::unique_ptr<Training> training, Training::Create(options, worker));
  return training->Run(final_weights);
}

}  // namespace psring
