#include "trainer/train_loop.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/reduce.h"
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
  Batch Gather(const SampledBatch& drawn);
  void Backward(int m, const Batch& batch);
  void AddSpan(SpanKind kind, int64_t step, int64_t begin_ns, int64_t end_ns);
  void KeepSnapshot(int64_t steps_done);
  absl::Status PlanResumption();
  absl::Status LoadCheckpoint(std::vector<float>& weights);
  TrainingPosition PositionAt(int64_t next) const;
  absl::Status SaveCheckpoint(int64_t next);
  absl::Status CheckpointIfDue(int64_t done_before, int64_t done);
  int64_t SamplesOfVersion() const;
  absl::Status ScoreCurve();
  void Count(const StepRecord& record);
  void Describe();

  const TrainingOptions& options_;
  Worker& worker_;
  const StrategyRow* strategy_row_ = nullptr;
  StepPlan plan_;
  int64_t drawn_batch_ = 0;  // samples that all workers draw for a step; those of spare workers are dropped
  std::vector<Bucket> buckets_;

  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Model> model_;
  Buffer weights_, own_gradient_, micro_gradient_, inputs_, labels_;
  Span gradient_;
  int gradient_fd_ = -1;
  bool server_shares_ = false;  // a parameter server on this host may work in our buffers
  std::unique_ptr<SyncStrategy> strategy_;
  bool shares_steps_ = false;  // among workers that never wait for each other
  std::optional<BucketPipeline> pipeline_;
  std::vector<DistributedSampler> samplers_;  // one for each micro-batch
  std::optional<ComputeDelay> delay_;
  UpdatePlan updates_;
  ResumePlan resume_;
  TrainingCheckpoint loaded_;  // until Start
  int64_t saved_step_ = -1;
  int64_t sequence_ = 0;  // of the newest checkpoint

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
  t.updates_ = updates;

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
  PSRING_ASSIGN_OR_RETURN(t.inputs_, device.Allocate(max_batch * data.image_size() * sizeof(float)));
  PSRING_ASSIGN_OR_RETURN(t.labels_, device.Allocate(max_batch));

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
  if (worker.resume != nullptr) PSRING_RETURN_IF_ERROR(t.PlanResumption());
  return training;
}

// What is sent lies in memory that peers of this host may read in place: the server, or the ranks of the
// group.
absl::Status Training::AllocateGradient(size_t bytes) {
  const bool group_shares = worker_.group != nullptr && worker_.registered != nullptr;
  PSRING_ASSIGN_OR_RETURN(own_gradient_, server_shares_ || group_shares ? worker_.device.AllocateShared(bytes)
                                                                        : worker_.device.Allocate(bytes));
  gradient_ = own_gradient_.span();
  gradient_fd_ = own_gradient_.shared_fd();
  if (!group_shares) return absl::OkStatus();
  worker_.registered->push_back(std::move(own_gradient_));
  return worker_.group->Register(worker_.registered->back());
}

absl::StatusOr<RankResult> Training::Run(std::vector<float>* final_weights) {
  std::vector<float> initial = model_->InitialWeights(options_.seed);
  if (worker_.resume != nullptr) PSRING_RETURN_IF_ERROR(LoadCheckpoint(initial));
  std::vector<ConstSpan> slots;
  for (const std::vector<float>& slot : loaded_.slots) slots.emplace_back(slot.data(), slot.size());
  compute_->Copy(weights_.data(), initial.data(), weights_.bytes());
  PSRING_RETURN_IF_ERROR(compute_->Synchronize());
  PSRING_RETURN_IF_ERROR(strategy_->Start({.weights = weights_.span(),
                                           .gradient = gradient_,
                                           .weights_fd = weights_.shared_fd(),
                                           .gradient_fd = gradient_fd_,
                                           .step = resume_.step,
                                           .samples = resume_.samples,
                                           .has_slots = resume_.with_slots,
                                           .slots = slots}));
  loaded_ = {};

  if (absl::Status trained = Steps(); !trained.ok()) {
    strategy_->Abort(trained);  // or the peers would wait for their deadline
    return trained;
  }
  if (IsAsynchronous(*strategy_row_)) {  // everybody's updates are in what is collected
    version_ = plan_.total_steps() * worker_.world_size;
    global_samples_ = SamplesOfVersion();
  }
  if (!options_.checkpoint_dir.empty() && worker_.rank == 0 && saved_step_ != plan_.total_steps()) {
    PSRING_RETURN_IF_ERROR(SaveCheckpoint(plan_.total_steps()));
  }
  PSRING_RETURN_IF_ERROR(strategy_->Collect(weights_.span()));
  Describe();
  if (options_.evaluate && worker_.rank == 0) {
    KeepSnapshot(plan_.total_steps());
    PSRING_RETURN_IF_ERROR(ScoreCurve());
  }
  result_.peak_memory_mb = PeakMemoryMb();
  if (final_weights != nullptr) {
    const float* weights = weights_.span().floats();
    final_weights->assign(weights, weights + weights_.span().count);
  }
  return std::move(result_);
}

absl::Status Training::Steps() {
  bool warm = false;
  // Beyond a checkpoint's where a server has gone on with the job already.
  int64_t next = std::max(resume_.step, strategy_->start_step());
  global_samples_ = resume_.samples + (next - resume_.step) * plan_.global_batch;
  version_ = resume_.step * worker_.world_size;
  if (next > 0) {
    for (DistributedSampler& sampler : samplers_) sampler.SeekTo(next);
  }
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
    if (options_.check_replicas) record->weights_hash = HashBytes(weights_.data(), weights_.bytes());
    Count(*record);
    const int64_t done_before = done;
    done = StepsDone(next);
    const bool evaluates = options_.evaluate && worker_.rank == 0 && options_.eval_every > 0;
    if (evaluates && done / options_.eval_every > done_before / options_.eval_every &&
        done < plan_.total_steps()) {
      KeepSnapshot(done);
    }
    worker_.on_step(*record);
    worker_.on_progress(done, plan_.total_steps(), record->loss);
    if (absl::Status kept = CheckpointIfDue(done_before, done); !kept.ok()) return AtStep(step, kept);
    if (next <= step) {
      GoBackTo(next);
      warm = warm && next > plan_.warmup_steps;
    }
  }
}

absl::Status Training::PlanResumption() {
  PSRING_ASSIGN_OR_RETURN(const TrainingPosition from, DecodePosition(*worker_.resume));
  sequence_ = from.sequence;
  resume_ =
      PlanResume(from, PositionAt(0), samplers_.front().steps_per_epoch(), worker_.resume->has_optimizer);
  for (const std::string& note : resume_.notes) {
    if (worker_.rank == 0) worker_.on_warning(note);
  }
  return absl::OkStatus();
}

absl::Status Training::LoadCheckpoint(std::vector<float>& weights) {
  if (worker_.resume->model.empty()) return absl::OkStatus();  // it comes from rank 0
  PSRING_ASSIGN_OR_RETURN(loaded_, DecodeCheckpoint(*worker_.resume, model_->parameters()));
  weights = std::move(loaded_.weights);
  if (!resume_.with_slots) loaded_.slots.clear();
  return absl::OkStatus();
}

TrainingPosition Training::PositionAt(int64_t next) const {
  const int64_t steps_per_epoch = samplers_.front().steps_per_epoch();
  const int64_t drawn = int64_t{options_.batch} * worker_.world_size * options_.micro_batches;
  return {.model = options_.model,
          .data = options_.data,
          .strategy = options_.strategy,
          .asynchronous = IsAsynchronous(*strategy_row_),
          .data_count = worker_.data.train.count(),
          .drawn_batch = drawn,
          .workers = worker_.world_size,
          .seed = options_.seed,
          .wire = options_.wire,
          .optimizer = updates_.optimizer,
          .schedule = updates_.schedule,
          .flags = TrainingArguments(options_),
          .sequence = sequence_ + 1,
          .step = next,
          .updates = IsAsynchronous(*strategy_row_) ? version_ : next,
          .samples = global_samples_,
          .epoch = next / steps_per_epoch,
          .epoch_samples = next % steps_per_epoch * drawn};
}

absl::Status Training::SaveCheckpoint(int64_t next) {
  const size_t count = weights_.span().count;
  TrainingCheckpoint checkpoint{.position = PositionAt(next), .weights = std::vector<float>(count)};
  std::vector<Span> slots;
  checkpoint.slots.resize(OptimizerSlots(updates_.optimizer.kind).size());
  for (std::vector<float>& slot : checkpoint.slots) {
    slot.resize(count);
    slots.push_back({slot.data(), count});
  }
  PSRING_ASSIGN_OR_RETURN(const bool is_of_step, strategy_->Save({checkpoint.weights.data(), count}, slots));
  if (!is_of_step) return absl::OkStatus();
  PSRING_RETURN_IF_ERROR(worker_.save(next, EncodeCheckpoint(checkpoint, model_->parameters())));
  saved_step_ = next;
  ++sequence_;
  return absl::OkStatus();
}

// Every --checkpoint_every steps, and when this rank is told to end.
absl::Status Training::CheckpointIfDue(int64_t done_before, int64_t done) {
  if (options_.checkpoint_dir.empty()) return absl::OkStatus();
  const int64_t every = options_.checkpoint_every;
  const bool stops = worker_.stops();
  const bool due = every > 0 && done / every > done_before / every && done < plan_.total_steps();
  if (worker_.rank == 0 && (due || stops)) PSRING_RETURN_IF_ERROR(SaveCheckpoint(done));
  // What a server's worker fetches is whole by itself, unless spare workers go on meanwhile; the others of a
  // group would only wait in the next step.
  const bool waits = strategy_row_->needs != Needs::kParameterServer || SpareWorkers(options_.strategy) > 0;
  if (due && waits) PSRING_RETURN_IF_ERROR(worker_.barrier());
  if (!stops) return absl::OkStatus();
  if (worker_.rank == 0)
    return absl::CancelledError(absl::StrCat("told to end; a checkpoint of step ", done, " is kept"));
  // The others of a synchronous strategy end when rank 0 has; until then its step needs them.
  if (!IsAsynchronous(*strategy_row_)) return absl::OkStatus();
  PSRING_RETURN_IF_ERROR(strategy_->Collect(weights_.span()));
  return absl::CancelledError("told to end");
}

int64_t Training::SamplesOfVersion() const {
  return resume_.samples + (version_ - resume_.step * worker_.world_size) * options_.batch;
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
  BatchScore score;
  int64_t compute_ns = 0;

  PSRING_RETURN_IF_ERROR(strategy_->BeginStep(info));
  pipeline_->BeginStep();
  for (int m = 0; m < options_.micro_batches; ++m) {
    const Batch batch = Gather(drawn[m]);
    const int64_t forward_ns = trace.Now();
    if (m == 0) delay_->Begin(step);
    model_->Forward(weights_.span(), batch, &score, *compute_);
    delay_->Prolong();
    const int64_t backward_ns = trace.Now();
    Backward(m, batch);  // hands finished buckets to the strategy on its way
    const int64_t end_ns = trace.Now();
    AddSpan(SpanKind::kForward, step, forward_ns, backward_ns);
    AddSpan(SpanKind::kBackward, step, backward_ns, end_ns);
    compute_ns += end_ns - forward_ns;
  }
  PSRING_CHECK(pipeline_->all_ready());
  const int64_t finish_ns = trace.Now();
  PSRING_ASSIGN_OR_RETURN(StepReport report, strategy_->FinishStep());
  PSRING_RETURN_IF_ERROR(compute_->Synchronize());
  record.step_ms = Milliseconds(trace.Now() - record.begin_ns);

  if (report.exposed_ns > 0) AddSpan(SpanKind::kExposed, step, finish_ns, finish_ns + report.exposed_ns);
  next = report.next_step >= 0 ? report.next_step : step + 1;
  if (IsAsynchronous(*strategy_row_)) {
    version_ = report.version;
    global_samples_ = SamplesOfVersion();
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

Batch Training::Gather(const SampledBatch& drawn) {
  const Dataset& data = worker_.data.train;
  uint8_t* labels = static_cast<uint8_t*>(labels_.data());
  GatherBatch(data, drawn.indices, inputs_.span().floats(), labels);
  return {.size = static_cast<int>(drawn.indices.size()),
          .inputs = inputs_.span().Slice(0, drawn.indices.size() * data.image_size()),
          .labels = labels};
}

// Leaves the sum of the gradients of micro-batches 0 to m, added in order, as a server in deterministic mode
// adds its workers'.
void Training::Backward(int m, const Batch& batch) {
  const bool only = options_.micro_batches == 1;
  model_->Backward(weights_.span(), batch, m == 0 ? gradient_ : micro_gradient_.span(), *compute_,
                   [&](size_t first) {
                     delay_->Prolong();
                     if (only) pipeline_->LayerDone(first);
                     delay_->Resume();
                   });
  if (m > 0) ops_->Add(gradient_, micro_gradient_.span(), *compute_);
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

void Training::KeepSnapshot(int64_t steps_done) {
  auto since = losses_.begin() + snapshot_losses_;
  if (since == losses_.end() && !losses_.empty()) --since;  // others have ended the training: the loss before
  snapshot_losses_ = static_cast<int64_t>(losses_.size());
  const float* weights = weights_.span().floats();
  snapshots_.push_back({.point = {.samples = global_samples_,
                                  .updates = IsAsynchronous(*strategy_row_) ? version_ : steps_done,
                                  .wall_s = trained_s_,
                                  .train_loss = std::accumulate(since, losses_.end(), 0.0) /
                                                std::max<int64_t>(1, losses_.end() - since)},
                        .weights = {weights, weights + weights_.span().count}});
}

absl::Status Training::ScoreCurve() {
  const Dataset& test = worker_.data.test;
  for (WeightsCopy& snapshot : snapshots_) {
    compute_->Copy(gradient_.data, snapshot.weights.data(), gradient_.bytes());
    PSRING_ASSIGN_OR_RETURN(const BatchScore score,
                            Evaluate(*model_, gradient_, test, kEvaluationBatch, inputs_.span(),
                                     static_cast<uint8_t*>(labels_.data()), *compute_));
    snapshot.point.test_loss = score.loss_sum / test.count();
    snapshot.point.test_accuracy = static_cast<double>(score.correct) / test.count();
    result_.curve.push_back(snapshot.point);
    worker_.on_evaluation(snapshot.point);
  }
  return absl::OkStatus();
}

// All of the result that is known without the curve.
void Training::Describe() {
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
  result_.weights_hash = HashBytes(weights_.data(), weights_.bytes());
}

}  // namespace

absl::StatusOr<RankResult> RunWorker(const TrainingOptions& options, Worker& worker,
                                     std::vector<float>* final_weights) {
  PSRING_ASSIGN_OR_RETURN(std::unique_ptr<Training> training, Training::Create(options, worker));
  return training->Run(final_weights);
}

}  // namespace psring
