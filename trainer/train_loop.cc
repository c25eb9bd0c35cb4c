#include "trainer/train_loop.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/cuda_sharing.h"
#include "common/reduce.h"
#include "trainer/batch_memory.h"
#include "trainer/bucket_pipeline.h"
#include "trainer/compute_delay.h"
#include "trainer/data_parallel.h"
#include "trainer/ddp_sums.h"
#include "trainer/evaluation.h"
#include "trainer/model.h"
#include "trainer/replayed_model.h"
#include "trainer/sampler.h"
#include "trainer/sync_strategy.h"
#include "trainer/training_plan.h"

namespace psring {
namespace {

constexpr int kEvaluationBatch = 128;

BucketSizes SizesOf(const TrainingOptions& options) {
  return {.first_mb = std::min(1.0, options.bucket_mb), .others_mb = options.bucket_mb};
}

std::vector<int64_t> BytesOf(const std::vector<Bucket>& buckets) {
  std::vector<int64_t> bytes;
  for (const Bucket& bucket : buckets) bytes.push_back(static_cast<int64_t>(bucket.count * sizeof(float)));
  return bytes;
}

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

  absl::Status MakeModel(const ModelRow& row, int max_batch);
  std::vector<std::vector<int64_t>> BatchesOf(SampledStep drawn) const;
  void Describe(DataParallelFigures figures, StepRecord& record);
  double StateMb() const;
  absl::Status AllocateGradient(size_t bytes);
  std::string OnGpu(const Buffer& memory) const;
  absl::Status Steps();
  absl::Status RebuildBuckets(std::vector<int> order);
  absl::Status PlanBucketsByTrial();
  absl::StatusOr<std::optional<int64_t>> AwaitStage(int stage);
  void GoBackTo(int64_t step);
  bool IsOver(int64_t step) const;
  int64_t StepsDone(int64_t next) const;
  absl::StatusOr<StepRecord> Step(int64_t step, int64_t& next);
  void Backward(int batch_of_step, const Batch& batch);
  double MeanLoss(size_t first) const;
  void AddSpan(SpanKind kind, int64_t step, int64_t begin_ns, int64_t end_ns);
  absl::StatusOr<ConstSpan> WeightsOnHost();
  absl::Status KeepSnapshot(int64_t steps_done);
  absl::Status PlanResumption();
  absl::Status LoadCheckpoint(std::vector<float>& weights);
  TrainingPosition PositionAt(int64_t next) const;
  absl::Status SaveCheckpoint(int64_t next);
  absl::Status CheckpointIfDue(int64_t done_before, int64_t done);
  int64_t SamplesBefore(int64_t step) const;
  int64_t SamplesOfVersion() const;
  absl::Status ScoreCurve();
  void Count(const StepRecord& record);
  absl::Status Describe();

  const TrainingOptions& options_;
  Worker& worker_;
  const StrategyRow* strategy_row_ = nullptr;
  StepPlan plan_;
  std::vector<Bucket> buckets_;

  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Model> model_;
  DataParallel* replicas_ = nullptr;  // model_, where it is that
  Buffer weights_, own_gradient_;
  Buffer host_weights_, host_gradient_;  // where the host does not read the device's memory
  Buffer worker_gradient_;               // of one of the workers that micro-batches stand for
  Buffer micro_gradient_;                // of one batch of several that are accumulated
  HostView gradient_;
  int gradient_fd_ = -1;
  std::optional<BatchMemory> batches_;
  bool server_shares_ = false;  // a parameter server on this host may work in our buffers
  std::unique_ptr<SyncStrategy> strategy_;
  bool shares_steps_ = false;  // among workers that never wait for each other
  std::optional<BucketPipeline> pipeline_;
  bool has_rebuilt_ = false;  // or need not
  DdpSums ddp_;
  std::optional<DistributedSampler> sampler_;
  std::optional<ComputeDelay> delay_;
  UpdatePlan updates_;
  ResumePlan resume_;
  TrainingCheckpoint loaded_;  // until Start
  int64_t saved_step_ = -1;
  int64_t sequence_ = 0;  // of the newest checkpoint

  struct Stamps {
    int64_t forward_ns = 0, backward_ns = 0, end_ns = 0;
  };
  std::vector<Stamps> stamps_;  // of a step's batches; the compute stream writes into them

  int64_t global_samples_ = 0;  // in all updates so far
  int64_t version_ = 0;         // asynchronous: updates in this rank's weights, those of all workers
  double trained_s_ = 0;
  struct Made {
    int64_t step;
    int64_t samples;  // that count
    int64_t drawn;
    double loss;  // mean over those
  };
  std::vector<Made> made_;    // this rank's steps
  size_t snapshot_made_ = 0;  // there were so many when the last snapshot was taken
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
  PSRING_ASSIGN_OR_RETURN(const UpdatePlan updates,
                          PlanUpdates(options, *t.strategy_row_, model_row, t.plan_, data.count()));
  t.updates_ = updates;

  if (worker.rank == 0) {
    for (const std::string& warning : PlanWarnings(*t.strategy_row_, updates)) worker.on_warning(warning);
  }

  PSRING_ASSIGN_OR_RETURN(const DType precision, ParseDType(options.precision));
  const int max_batch = std::max(options.batch * options.replicas, kEvaluationBatch);
  t.compute_ = device.NewStream(StreamKind::kCompute, "compute");
  PSRING_ASSIGN_OR_RETURN(t.ops_, MakeOps(device, options.threads, precision));
  if (precision != DType::kFloat32 && worker.rank == 0 && BFloat16Support() == BFloat16::kEmulated) {
    worker.on_warning(
        "--precision bfloat16 on a CPU without AVX512-BF16: it is emulated, and slower than float32");
  }
  PSRING_RETURN_IF_ERROR(t.MakeModel(model_row, max_batch));
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
    PSRING_ASSIGN_OR_RETURN(t.worker_gradient_, device.Allocate(bytes));
  }
  if (options.accumulate > 1) {
    PSRING_ASSIGN_OR_RETURN(t.micro_gradient_, device.Allocate(bytes));
  }
  PSRING_ASSIGN_OR_RETURN(t.host_weights_, AllocateHostSide(device, t.weights_));
  PSRING_ASSIGN_OR_RETURN(t.batches_, BatchMemory::Create(data, max_batch, device));

  t.buckets_ = PlanBuckets(t.model_->parameters(), SizesOf(options));
  if (t.strategy_row_->needs == Needs::kParameterServer) PSRING_RETURN_IF_ERROR(t.PlanBucketsByTrial());
  t.result_.ddp.bucket_bytes = BytesOf(t.buckets_);
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

  t.sampler_.emplace(
      SamplerOptions{.count = data.count(),
                     .rank = worker.rank,
                     .world_size = worker.world_size,
                     .batch = options.batch,
                     .micro_batches = options.micro_batches * options.replicas * options.accumulate,
                     .seed = options.seed,
                     .drop_last = options.drop_last == "true"});
  if (worker.resume != nullptr) PSRING_RETURN_IF_ERROR(t.PlanResumption());
  return training;
}

absl::Status Training::MakeModel(const ModelRow& row, int max_batch) {
  const Dataset& data = worker_.data.train;
  Device& device = worker_.device;
  if (!strategy_row_->replicates) {
    PSRING_ASSIGN_OR_RETURN(model_, row.make(data, max_batch, device, *ops_));
    return absl::OkStatus();
  }
  if (device.name() != "cpu") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--strategy dp is for --device cpu, whose replicas are threads; this is ", device.name()));
  }
  const int max_share = (max_batch + options_.replicas - 1) / options_.replicas;
  const DataParallelOptions options{.replicas = options_.replicas,
                                    .max_batch = max_batch,
                                    .max_share = max_share,
                                    .sample_elements = static_cast<size_t>(data.image_size()),
                                    .classes = data.classes,
                                    .clock = [this] { return worker_.trace.Now(); }};
  PSRING_ASSIGN_OR_RETURN(
      std::unique_ptr<DataParallel> made,
      DataParallel::Create(options, device, *ops_, [&]() -> absl::StatusOr<DataParallel::Parts> {
        DataParallel::Parts parts;
        PSRING_ASSIGN_OR_RETURN(parts.ops, MakeOps(device, options_.threads, ops_->activations()));
        PSRING_ASSIGN_OR_RETURN(parts.model, row.make(data, max_share, device, *parts.ops));
        return parts;
      }));
  replicas_ = made.get();
  model_ = std::move(made);
  return absl::OkStatus();
}

// For a parameter server on a GPU of this host; empty where there can be none, or the driver does not share.
std::string Training::OnGpu(const Buffer& memory) const {
  if (!server_shares_ || worker_.device.gpu() < 0) return "";
  return ExportMemory(worker_.device, memory).value_or("");
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
                                           .has_slots = resume_.with_slots,
                                           .slots = slots}));
  loaded_ = {};
  if (!resume_.ready_order.empty()) PSRING_RETURN_IF_ERROR(RebuildBuckets(resume_.ready_order));

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
  version_ = resume_.step * worker_.world_size;
  if (next > 0) sampler_->SeekTo(next);
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
        sampler_->SeekTo(next);
        GoBackTo(next);
        done = StepsDone(next);
        warm = warm && next > plan_.warmup_steps;
        continue;
      }
    }
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
    if (absl::Status kept = CheckpointIfDue(done_before, done); !kept.ok()) return AtStep(step, kept);
    if (next <= step) {
      GoBackTo(next);
      warm = warm && next > plan_.warmup_steps;
    }
  }
}

absl::Status Training::PlanResumption() {
  PSRING_ASSIGN_OR_RETURN(const TrainingPosition from, DecodePosition(*worker_.resume));
  sequence_ = std::max(from.sequence, worker_.resume->sequence);
  resume_ = PlanResume(from, PositionAt(0), sampler_->steps_per_epoch(), worker_.resume->has_optimizer,
                       model_->parameters());
  for (const std::string& note : resume_.notes) {
    if (worker_.rank == 0) worker_.on_note(note);
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
  return {.model = options_.model,
          .data = options_.data,
          .strategy = options_.strategy,
          .asynchronous = IsAsynchronous(*strategy_row_),
          .data_count = worker_.data.train.count(),
          .drawn_batch = plan_.drawn_batch,
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
          .epoch = next / sampler_->steps_per_epoch(),
          .epoch_samples = next % sampler_->steps_per_epoch() * plan_.drawn_batch,
          .ready_order = result_.ddp.ready_order};
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

// What a checkpoint's steps drew need not be what as many steps of this run would have.
int64_t Training::SamplesBefore(int64_t step) const {
  return resume_.samples + plan_.SamplesBefore(step) - plan_.SamplesBefore(resume_.step);
}

int64_t Training::SamplesOfVersion() const {
  return resume_.samples + plan_.SamplesIn(version_, worker_.world_size) - plan_.SamplesBefore(resume_.step);
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
  buckets_ = PlanBuckets(layout, order, SizesOf(options_));
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
  buckets_ = PlanBuckets(layout, TensorsInOrder(layout, order), SizesOf(options_));
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
  const StepInfo info{.step = step,
                      .samples = drawn.samples,
                      .global_samples = drawn.global_samples,
                      .global_samples_before = global_samples_};
  const std::vector<std::vector<int64_t>> batches = BatchesOf(std::move(drawn));

  PSRING_RETURN_IF_ERROR(strategy_->BeginStep(info));
  pipeline_->BeginStep();
  batches_->ClearScore(*compute_);
  stamps_.assign(batches.size(), {});
  for (size_t i = 0; i < batches.size(); ++i) {
    PSRING_ASSIGN_OR_RETURN(const Batch batch, batches_->Load(worker_.data.train, batches[i], *compute_));
    compute_->Stamp(stamps_[i].forward_ns);
    if (i == 0) delay_->Begin(step);
    model_->Forward(weights_.span(), batch, batches_->score(), *compute_);
    delay_->Prolong();
    compute_->Stamp(stamps_[i].backward_ns);
    Backward(static_cast<int>(i), batch);  // the last one hands finished buckets to the strategy on its way
    compute_->Stamp(stamps_[i].end_ns);
  }
  batches_->DownloadScore(*compute_);
  PSRING_CHECK(pipeline_->all_ready());
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
    global_samples_ = SamplesOfVersion();
  } else {
    global_samples_ = SamplesBefore(next);
  }
  if (next != step + 1) sampler_->SeekTo(next);
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

// `figures`: of this step.
void Training::Describe(DataParallelFigures figures, StepRecord& record) {
  // What is left of forward and backward is what all replicas did at once, and the loss.
  record.compute_ms -= figures.moved_ms();
  record.comm_busy_ms = record.exposed_comm_ms = figures.moved_ms();
  record.payload_tx_bytes = static_cast<uint64_t>(figures.from_device0_bytes());
  record.payload_rx_bytes = static_cast<uint64_t>(figures.to_device0_bytes());
  if (record.warmup) return;
  const double share = 1 / static_cast<double>(plan_.steps);
  DataParallelFigures& mean = result_.data_parallel;
  mean.replicas = figures.replicas;
  for (double DataParallelFigures::*field :
       {&DataParallelFigures::inputs_bytes, &DataParallelFigures::inputs_ms,
        &DataParallelFigures::weights_bytes, &DataParallelFigures::weights_ms,
        &DataParallelFigures::output_gradients_bytes, &DataParallelFigures::output_gradients_ms,
        &DataParallelFigures::outputs_bytes, &DataParallelFigures::outputs_ms,
        &DataParallelFigures::gradients_bytes, &DataParallelFigures::gradients_ms,
        &DataParallelFigures::loss_ms, &DataParallelFigures::update_ms, &DataParallelFigures::compute_ms}) {
    mean.*field += share * figures.*field;
  }
  mean.device0_extra_mb = figures.device0_extra_mb + StateMb();
}

// The optimizer's state, which device 0 alone holds.
double Training::StateMb() const {
  const OptimizerKind kind = updates_.optimizer.kind;
  const int slots = kind == OptimizerKind::kAdam ? 2 : kind == OptimizerKind::kMomentum ? 1 : 0;
  return static_cast<double>(slots) * static_cast<double>(weights_.bytes()) / (1 << 20);
}

// Leaves the sum of the gradients of the step's batches so far, added in order: the accumulated batches of a
// worker first, then the workers that micro-batches stand for, as a server in deterministic mode adds them.
// Only behind the last batch is a bucket complete.
void Training::Backward(int batch_of_step, const Batch& batch) {
  const int of_worker = batch_of_step % options_.accumulate;
  const bool first_worker = batch_of_step < options_.accumulate;
  const bool worker_done = of_worker + 1 == options_.accumulate;
  const bool step_done = batch_of_step + 1 == options_.accumulate * options_.micro_batches;
  const Span sum = first_worker ? gradient_.device : worker_gradient_.span();
  const Span to = of_worker == 0 ? sum : micro_gradient_.span();
  model_->Backward(weights_.span(), batch, to, *compute_, [&](ReadyRange range) {
    const auto add = [&](Span into, Span from) {
      ops_->Add(into.Slice(range.first, range.count), from.Slice(range.first, range.count), *compute_);
    };
    if (of_worker > 0) add(sum, to);
    if (worker_done && !first_worker) add(gradient_.device, sum);
    delay_->Prolong();
    if (step_done) pipeline_->Ready(range);
    delay_->Resume();
  });
}

void Training::AddSpan(SpanKind kind, int64_t step, int64_t begin_ns, int64_t end_ns) {
  worker_.trace.Add({.kind = kind, .step = step, .begin_ns = begin_ns, .end_ns = end_ns});
}

void Training::Count(const StepRecord& record) {
  if (record.dropped) ++result_.dropped_gradients;
  made_.push_back({.step = record.step,
                   .samples = record.warmup || record.dropped ? 0 : record.samples,
                   .drawn = record.samples,
                   .loss = record.loss});
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
  // Where others have ended the training: the loss before.
  const size_t since = snapshot_made_ == made_.size() && !made_.empty() ? made_.size() - 1 : snapshot_made_;
  snapshot_made_ = made_.size();
  PSRING_ASSIGN_OR_RETURN(const ConstSpan weights, WeightsOnHost());
  snapshots_.push_back({.point = {.samples = global_samples_,
                                  .updates = IsAsynchronous(*strategy_row_) ? version_ : steps_done,
                                  .wall_s = trained_s_,
                                  .train_loss = MeanLoss(since)},
                        .weights = {weights.floats(), weights.floats() + weights.count}});
  return absl::OkStatus();
}

// Over the samples of this rank's steps from made_[first] on.
double Training::MeanLoss(size_t first) const {
  double sum = 0;
  int64_t samples = 0;
  for (size_t i = first; i < made_.size(); ++i) {
    sum += made_[i].loss * static_cast<double>(made_[i].drawn);
    samples += made_[i].drawn;
  }
  return sum / static_cast<double>(std::max<int64_t>(1, samples));
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
  ddp_.Describe(result_.ddp);
  for (const Bucket& bucket : buckets_) result_.bucket_elements.push_back(bucket.count);
  const size_t made = made_.size();
  result_.final_loss = MeanLoss(made - std::min(made, std::max<size_t>(1, made / 10)));
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
