// Creates a rank's training: plan, model, memory, buckets, strategy.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/device_factory/make_ops.h"
#include "common/text/translate.h"
#include "trainer/memory/layout_memory.h"
#include "trainer/models/replayed_model.h"
#include "trainer/step/training.h"
#include "trainer/strategies/local_aggregation.h"

namespace psring {

absl::StatusOr<std::unique_ptr<Training>> Training::Create(const TrainingOptions& options, Worker& worker) {
  auto training = std::unique_ptr<Training>(new Training(options, worker));
  Training& t = *training;
  const Dataset& data = worker.data.train;
  PSRING_ASSIGN_OR_RETURN(const ModelRow row, t.Plan());
  PSRING_ASSIGN_OR_RETURN(const Precision precision, ParsePrecision(options.precision));
  t.compute_ = worker.device.NewStream(StreamKind::kCompute, "compute");
  PSRING_ASSIGN_OR_RETURN(t.ops_, MakeOps(worker.device, options.threads, precision));
  PSRING_RETURN_IF_ERROR(t.part_.TakeSegment(row));
  PSRING_ASSIGN_OR_RETURN(t.model_, t.part_.MakeModel(row, *t.ops_));
  PSRING_ASSIGN_OR_RETURN(t.evaluation_batch_,
                          EvaluationBatch(*t.model_, t.part_.train().spec(), options.batch, worker.device));
  PSRING_RETURN_IF_ERROR(t.part_.TakeModelPart(row, *t.ops_, *t.compute_, t.model_));
  const int max_batch = std::max(options.batch * options.replicas, t.evaluation_batch_);
  if (precision == Precision::kBFloat16 && worker.device.host_reads_memory() && t.part_.is_first_rank() &&
      BFloat16Support() == BFloat16::kEmulated) {
    worker.on_warning(
        "--precision bfloat16 is emulated on this CPU, which lacks AVX512-BF16; it is slower than float32");
  }
  t.PlanShards();
  PSRING_RETURN_IF_ERROR(t.CheckMemoryOf(row, max_batch));
  if (t.strategy_row_.replicates) PSRING_RETURN_IF_ERROR(t.MakeReplicas(row, precision, max_batch));
  if (t.evaluates()) {
    const size_t kept = t.shards_weights() ? t.shards_.weights.parts : t.model_->parameters().count();
    PSRING_RETURN_IF_ERROR(CheckSnapshots(options.eval_every, t.plan_.total_steps(), kept));
  }
  if (t.updates_.optimizer.kind == OptimizerKind::kAdamW) {
    t.updates_.optimizer.no_decay = WithoutDecay(t.model_->parameters());
  }
  PSRING_RETURN_IF_ERROR(CheckTables(options, t.strategy_row_, t.updates_.optimizer, t.model_->parameters()));
  PSRING_RETURN_IF_ERROR(t.Allocate(max_batch));
  t.sampler_.emplace(
      SamplerOptions{.count = data.count(),
                     .rank = worker.rank / worker.segments(),
                     .world_size = worker.replicas(),
                     .ranks_per_machine = options.local_aggregation ? worker.group->size() : 1,
                     .batch = options.batch,
                     .micro_batches = options.reference_workers * options.replicas * options.micro_batches,
                     .predictions = data.spec().labels,
                     .seed = options.seed,
                     .drop_last = options.drop_last == "true"});
  t.clock_.emplace(t.plan_, worker.world_size, CountingOf(t.strategy_row_));
  t.recorder_.emplace(worker, t.plan_, t.part_.begins_replica(), t.result_);
  if (worker.resume != nullptr) {
    PSRING_ASSIGN_OR_RETURN(t.resume_, PlanResumption(*worker.resume, t.PositionOfRun(),
                                                      t.sampler_->steps_per_epoch(), worker.rank));
    t.updates_.optimizer.earlier_updates =
        t.resume_.plan.earlier_updates - t.resume_.plan.step * (t.updates_of_step_ - 1);
    t.clock_->ResumeAt(t.resume_.plan.step, t.resume_.plan.samples, t.resume_.plan.beyond);
  }
  PSRING_RETURN_IF_ERROR(t.MakeStrategy());
  t.MakeCheckpointer();
  PSRING_ASSIGN_OR_RETURN(t.delay_, ComputeDelay::Create(options, worker.rank, MonotonicNanos));
  if (t.delay_->active() && worker.device.name() != "cpu") {
    return InvalidArgument(
        "--straggler and --jitter_ms need --device cpu, where a call returns after its computing; "
        "this device is ",
        worker.device.name());
  }
  PSRING_RETURN_IF_ERROR(t.MakeExecutor(max_batch));
  return training;
}

// Everything that can be rejected before memory is allocated.
absl::StatusOr<ModelRow> Training::Plan() {
  const Dataset& data = worker_.data.train;
  PSRING_ASSIGN_OR_RETURN(strategy_row_, FindStrategy(options_.strategy, {}, *worker_.strategies));
  PSRING_ASSIGN_OR_RETURN(ModelRow row, ModelOf(options_, *worker_.models));
  PSRING_RETURN_IF_ERROR(CheckStrategy(options_, strategy_row_, worker_.replicas()));
  PSRING_RETURN_IF_ERROR(CheckDevice(options_, worker_.device));
  PSRING_ASSIGN_OR_RETURN(plan_, PlanSteps(options_, data.count(), worker_.replicas(), data.spec().labels));
  PSRING_ASSIGN_OR_RETURN(updates_, PlanUpdates(options_, strategy_row_, row, plan_));
  if (!part_.is_first_rank()) return row;
  for (const std::string& warning : PlanWarnings(updates_)) worker_.on_warning(warning);
  if (const std::string rounded = RoundingNote(options_, plan_); !rounded.empty()) worker_.on_note(rounded);
  return row;
}

absl::Status Training::CheckMemoryOf(const ModelRow& row, int max_batch) {
  StateOnRank state = StateOf(strategy_row_, updates_.optimizer, shard_ranks(), shards_);
  if (part_.has_stages()) {
    PSRING_RETURN_IF_ERROR(AddStages(part_.program(), part_.model_part()->place, options_, state));
    updates_of_step_ = state.updates;
  }
  const SampleSpec& samples = part_.train().spec();
  PSRING_ASSIGN_OR_RETURN(const MemoryNeed need,
                          MemoryNeedOf(options_, *model_, samples, max_batch, state, worker_.device));
  if (!strategy_row_.replicates && model_->parameters().tables().empty()) {
    result_.predicted_memory = ByClass(need);
  }
  if (need.recomputes && part_.is_first_rank()) worker_.on_note(RecomputeNote(need, max_batch));
  PSRING_ASSIGN_OR_RETURN(const std::vector<MemoryShare> shares,
                          SharesOf(need, options_.memory, worker_.device, worker_.share_memory));
  const MemoryQuestion question{
      .row = row,
      .samples = worker_.data.train.spec(),
      .optimizer = updates_.optimizer,
      .workers = worker_.world_size * (worker_.pipeline != nullptr ? worker_.pipeline->replica->size() : 1),
      .max_batch = max_batch,
      .ops = *ops_,
      .device = worker_.device};
  return CheckShares(need, shares, options_, question,
                     [&](const TrainingOptions& layout, const StrategyRow& strategy) {
                       return CheckLayout(layout, strategy, question.workers);
                     });
}

absl::Status Training::MakeReplicas(const ModelRow& row, Precision precision, int max_batch) {
  const SampleSpec& samples = worker_.data.train.spec();
  Device& device = worker_.device;
  if (device.name() != "cpu") {
    return InvalidArgument(
        "--strategy data-parallel needs --device cpu, where replicas are threads; this device is ",
        device.name());
  }
  const DataParallelOptions options{.replicas = options_.replicas,
                                    .max_batch = max_batch,
                                    .max_share = (max_batch + options_.replicas - 1) / options_.replicas,
                                    .samples = samples,
                                    .clock = [this] { return worker_.trace.Now(); }};
  PSRING_ASSIGN_OR_RETURN(
      std::unique_ptr<DataParallel> made,
      DataParallel::Create(options, device, *ops_, [&]() -> absl::StatusOr<DataParallel::Parts> {
        DataParallel::Parts parts;
        PSRING_ASSIGN_OR_RETURN(parts.ops, MakeOps(device, options_.threads, precision));
        PSRING_ASSIGN_OR_RETURN(parts.model, row.make(samples, *parts.ops));
        return parts;
      }));
  replicas_ = made.get();
  model_ = std::move(made);
  return absl::OkStatus();
}

// Weights, gradients, batches.
absl::Status Training::Allocate(int max_batch) {
  const size_t all = model_->parameters().count();
  PSRING_ASSIGN_OR_RETURN(
      memory_,
      WeightMemory::Create(
          worker_, {.weights = shards_weights() ? shards_.weights.elements : all,
                    .gradient = shards_.shards_gradient() ? shards_.gradient.elements : all,
                    .server_shares = worker_.client != nullptr && strategy_row_.has_parameters_on_servers() &&
                                     options_.transport != "tcp",
                    .group_sends_weights = strategy_row_.shards_updates}));
  const ParameterLayout& layout = model_->parameters();
  PSRING_RETURN_IF_ERROR(CheckSyncBatchNorm(options_, layout));
  if (!layout.buffers().empty() && part_.is_first_rank()) {
    worker_.on_note(StatisticsNote(options_, strategy_row_, worker_.world_size));
  }
  const bool goes_back = strategy_row_.synchronous && strategy_row_.uses_servers &&
                         ServerReturns(options_, ServersOf(options_, worker_.world_size));
  PSRING_ASSIGN_OR_RETURN(
      buffers_, ModelBuffers::Create(worker_, layout, *compute_,
                                     goes_back ? std::max<int64_t>(1, options_.checkpoint_every) : 0));
  PSRING_RETURN_IF_ERROR(part_.Reserve(*model_, max_batch));
  if (worker_.group != nullptr && part_.is_first_rank() && !worker_.group->info().through_host.empty()) {
    worker_.on_note(Tr("gradients go through pinned host memory: $0", worker_.group->info().through_host));
  }
  return absl::OkStatus();
}

// In the order in which backward completes gradients. DDP reports two plans, of which this is the second: it
// first plans buckets in the declared order.
void Training::PlanBucketsByReadiness() {
  const ParameterLayout& layout = model_->parameters();
  const std::vector<int> order = TensorsByReadiness(*model_);
  const BucketSizes sizes = BucketSizesOf(options_);
  if (!shards_.shards_gradient()) buckets_ = PlanBuckets(layout, order, sizes);
  if (part_.has_stages() && !shards_.shards_gradient()) {
    buckets_ = CutBuckets(buckets_, model_->CompleteAfterLayers(), part_.model_part()->stages,
                          part_.OrderedTensors());
  }
  if (buckets_.empty() && strategy_row_.counts_pushes()) counting_ = {CountingBucket()};
  DdpFigures& ddp = result_.ddp;
  for (const int tensor : order) {
    ddp.ready_order.push_back(layout.tensors()[static_cast<size_t>(tensor)].name);
  }
  ddp.bucket_bytes = BytesOf(pushed_buckets());
  ddp.has_rebuilt_buckets = strategy_row_.uses_group && worker_.world_size > 1 && !shards_.shards_gradient();
  if (!ddp.has_rebuilt_buckets) return;
  ddp.rebuilt_bucket_bytes = std::exchange(ddp.bucket_bytes, BytesOf(PlanBuckets(layout, sizes)));
}

// The norm of a replica's gradient is that of all parts.
UpdateRule Training::RuleOfUpdates() {
  UpdateRule rule{
      .optimizer = updates_.optimizer, .schedule = updates_.schedule, .clip_norm = options_.clip_norm};
  if (part_.model_part() == nullptr) return rule;
  rule.counted_elsewhere = part_.model_part()->counted_elsewhere;
  rule.sum_over_stages = [this](double own) {
    const int64_t begin_ns = worker_.trace.Now();
    absl::StatusOr<double> sum = part_.Sum(own);
    // If an all-gather follows the norm, it is part of the exposed communication.
    if (part_.has_stages() && (strategy_.sharded == nullptr || shards_weights()))
      waits_.push_back({begin_ns, worker_.trace.Now()});
    return sum;
  };
  return rule;
}

absl::Status Training::MakeStrategy() {
  PlanBucketsByReadiness();
  PSRING_ASSIGN_OR_RETURN(const DType wire, ParseDType(options_.wire));
  // NCCL advises against recordings by several ranks of one process.
  const bool group_records =
      worker_.group == nullptr || (worker_.group->info().recordable && options_.ranks_per_process == 1);
  StrategyContext context{.rank = worker_.rank,
                          .world_size = worker_.world_size,
                          .device = worker_.device,
                          .ops = *ops_,
                          .compute = *compute_,
                          .trace = worker_.trace,
                          .threads = options_.threads,
                          .buckets = pushed_buckets(),
                          .tables = model_->parameters().tables(),
                          .seed = options_.seed,
                          .update = RuleOfUpdates(),
                          .wire = wire,
                          .records_steps = options_.cuda_graph && group_records,
                          .group = worker_.group,
                          .number = strategy_row_.number,
                          .reductions = shards_.shards_gradient() ? options_.micro_batches : 1};
  context.shards = shards_;
  if (worker_.shard_groups != nullptr) {
    context.shard_group = worker_.shard_groups->shards.get();
    context.copies = worker_.shard_groups->copies.get();
  }
  if (strategy_row_.uses_servers) {
    const bool returns = ServerReturns(options_, ServersOf(options_, worker_.world_size));
    context.servers = {
        .client = worker_.client,
        .consistency = strategy_row_.has_only_rows_on_servers() ? "sync" : strategy_row_.algorithm,
        .asynchronous = strategy_row_.asynchronous(),
        .drops_gradients = strategy_row_.drops_gradients,
        .deterministic = options_.deterministic || part_.needs_order(),
        .serial = options_.ps_schedule == "serial",
        .staleness_lr = options_.staleness_lr == "inverse",
        .kept_every = returns && strategy_row_.synchronous ? options_.checkpoint_every : 0,
        .timeout = absl::Seconds(options_.timeout_s),
        .on_note = worker_.on_note};
  }
  PSRING_ASSIGN_OR_RETURN(strategy_, options_.local_aggregation ? MakeLocalAggregation(context)
                                                                : Implement(strategy_row_, context));
  std::unique_ptr<RowStrategy> rows;
  if (!context.tables.empty()) {
    PSRING_ASSIGN_OR_RETURN(rows, ImplementRows(strategy_row_, context));
  }
  rows_ =
      std::make_unique<TableRows>(TableRows::Parts{.layout = model_->parameters(),
                                                   .data = worker_.data,
                                                   .strategy = strategy_row_,
                                                   .plan = plan_,
                                                   .trace = worker_.trace,
                                                   .span_bucket = static_cast<int>(pushed_buckets().size())},
                                  std::move(rows));
  return absl::OkStatus();
}

// Without the progress.
TrainingPosition Training::PositionOfRun() const {
  return {.model = options_.model,
          .data = worker_.data.name,
          .strategy = options_.strategy,
          .asynchronous = clock_->each_push(),
          .data_count = worker_.data.train.predictions(),
          .drawn_batch = plan_.drawn_batch,
          .workers = worker_.world_size,
          .seed = options_.seed,
          .wire = options_.wire,
          .optimizer = updates_.optimizer,
          .schedule = updates_.schedule,
          .flags = TrainingArguments(options_),
          .ready_order = result_.ddp.ready_order};
}

void Training::MakeCheckpointer() {
  checkpointer_.emplace(Checkpointer::Parts{.options = options_,
                                            .worker = worker_,
                                            .is_first_rank = part_.is_first_rank(),
                                            .plan = PlanCheckpoints(options_, strategy_row_),
                                            .run = PositionOfRun(),
                                            .steps_per_epoch = sampler_->steps_per_epoch(),
                                            .total_steps = plan_.total_steps(),
                                            .resumption = resume_,
                                            .clock = *clock_,
                                            .strategy = strategy_,
                                            .rows = *rows_,
                                            .buffers = *buffers_,
                                            .layout = model_->parameters(),
                                            .weights = memory_->weights().device,
                                            .part = part_.model_part(),
                                            .replica = part_.replica(),
                                            .same_stages = part_.same_stages(),
                                            .updates_of_step = updates_of_step_});
}

absl::Status Training::MakeExecutor(int max_batch) {
  const bool has_stages = part_.has_stages();
  PSRING_ASSIGN_OR_RETURN(
      executor_,
      Executor::Create(options_, {.device = worker_.device,
                                  .compute = *compute_,
                                  .ops = *ops_,
                                  .model = *model_,
                                  .program = part_.program(),
                                  .samples = part_.train().spec(),
                                  .max_batch = max_batch,
                                  .delay = *delay_,
                                  .strategy = strategy_,
                                  .buckets = buckets_,
                                  .weights = memory_->weights().device,
                                  .gradient = memory_->gradient().device,
                                  .buffers = buffers_->view().device,
                                  .statistics = buffers_->statistics(),
                                  .rows = rows_->touched(),
                                  .part = has_stages ? part_.model_part() : nullptr,
                                  .messages = part_.messages(),
                                  .shards = has_stages && shards_.shards_gradient() ? &shards_ : nullptr}));
  return absl::OkStatus();
}

std::vector<int64_t> Training::BytesOf(const std::vector<Bucket>& buckets) {
  std::vector<int64_t> bytes;
  for (const Bucket& bucket : buckets) bytes.push_back(static_cast<int64_t>(bucket.count * sizeof(float)));
  return bytes;
}

}  // namespace psring
