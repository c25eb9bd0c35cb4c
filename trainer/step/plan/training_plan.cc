#include "trainer/step/plan/training_plan.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cli/delays.h"
#include "common/device_factory/make_ops.h"
#include "common/tables/row_storage.h"
#include "common/text/translate.h"
#include "trainer/programs/pipeline_flags.h"
#include "trainer/strategies/local_aggregation.h"

namespace psring {
namespace {

struct Rule {
  bool applies;
  std::string message;
};
// InvalidArgument with the message of the first rule that applies.
absl::Status FirstThatApplies(const std::vector<Rule>& rules) {
  const auto first = std::ranges::find_if(rules, &Rule::applies);
  return first == rules.end() ? absl::OkStatus() : absl::InvalidArgumentError(first->message);
}

}  // namespace

int SpareWorkers(const std::string& strategy) {
  const absl::StatusOr<StrategyRow> row = FindStrategy(strategy);
  return row.ok() && row->number_below_workers ? row->number : 0;
}

CheckpointPlan PlanCheckpoints(const TrainingOptions& options, const StrategyRow& strategy) {
  const bool has_spare = SpareWorkers(options.strategy) > 0, asynchronous = strategy.asynchronous();
  // Rank 0 reads a server's state in one piece: synchronous workers cannot get ahead unless some are spare.
  return {.pauses_updates = asynchronous,
          .ranks_meet = asynchronous || !strategy.has_parameters_on_servers(),
          .same_step = !asynchronous && !has_spare,
          .barrier = !strategy.has_parameters_on_servers() || has_spare};
}

int64_t StepPlan::SamplesBefore(int64_t step) const {
  const int64_t in_epoch = step % steps_per_epoch * global_batch;
  return step / steps_per_epoch * epoch_samples + std::min(in_epoch, epoch_samples);
}

int64_t StepPlan::SamplesIn(int64_t updates, int per_step) const {
  const int64_t steps = updates / per_step;
  const int64_t before = SamplesBefore(steps);
  return before + (SamplesBefore(steps + 1) - before) * (updates % per_step) / per_step;
}

absl::StatusOr<StepPlan> PlanSteps(const TrainingOptions& options, int64_t samples, int world_size,
                                   int predictions) {
  // Of all workers; products with updates and samples fit into 64 bits.
  constexpr double kMaxSamples = 1e18;
  const int64_t data_count = samples * predictions;
  const double drawn = static_cast<double>(options.batch) * options.micro_batches * predictions * world_size *
                       options.reference_workers * options.replicas;
  if (drawn > kMaxSamples) {
    return InvalidArgument("--batch ", options.batch, ": a step would have ", drawn, " samples; use fewer");
  }
  const int64_t worker_batch = WorkerBatch(options) * predictions;
  StepPlan plan{.warmup_steps = options.warmup_steps,
                .drawn_batch = worker_batch * world_size * options.reference_workers * options.replicas,
                .data_count = data_count,
                .predictions = predictions};
  const bool drops_last = options.drop_last == "true";
  if (drops_last && plan.drawn_batch > data_count) {
    const int64_t shares = plan.drawn_batch / predictions / options.batch;
    return InvalidArgument("--batch ", options.batch,
                           shares > 1 ? absl::StrCat(" times ", shares, " workers") : "",
                           " is larger than the data (", samples, " samples)");
  }
  // Budgets count the samples in updates; the gradients of spare workers are normally dropped.
  plan.global_batch = plan.drawn_batch - worker_batch * SpareWorkers(options.strategy);
  const int64_t left_over = drops_last ? 0 : plan.global_batch - 1;
  plan.steps_per_epoch = (data_count + left_over) / plan.global_batch;
  plan.epoch_samples = std::min(data_count, plan.steps_per_epoch * plan.global_batch);
  const double per_epoch = static_cast<double>(plan.steps_per_epoch);
  double steps = options.epochs > 0 ? options.epochs * per_epoch : per_epoch;
  if (options.samples > 0) {
    const int64_t epochs = options.samples / plan.epoch_samples;
    const int64_t rest = options.samples % plan.epoch_samples;
    steps = static_cast<double>(epochs) * per_epoch +
            static_cast<double>(rest) / static_cast<double>(plan.global_batch);
  }
  if (options.steps > 0) steps = static_cast<double>(options.steps);
  if ((steps + static_cast<double>(plan.warmup_steps)) * static_cast<double>(plan.global_batch) >
      kMaxSamples) {
    const char* budget = options.steps > 0 ? "--steps" : options.samples > 0 ? "--samples" : "--epochs";
    return InvalidArgument(budget, " or --warmup_steps: training on more than ", kMaxSamples, " samples");
  }
  plan.steps = std::max<int64_t>(1, std::llround(steps));
  plan.total_samples = plan.SamplesBefore(plan.total_steps());
  return plan;
}

std::string RoundingNote(const TrainingOptions& options, const StepPlan& steps) {
  const int64_t planned = steps.total_samples - steps.SamplesBefore(steps.warmup_steps);
  if (options.samples == 0 || options.steps > 0 || planned == options.samples) return "";
  return Tr("--samples $0 is rounded to $1: a step has $2 samples", options.samples, planned,
            steps.global_batch);
}

namespace {

double DefaultRate(const OptimizerConfig& optimizer, bool stale, const ModelRow& model) {
  constexpr double kAdamRate = .001;    // Kingma & Ba 2015
  constexpr double kAdagradRate = .01;  // PyTorch's
  const double momentum = optimizer.kind == OptimizerKind::kMomentum ? optimizer.momentum : 0;
  switch (optimizer.kind) {
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      if (std::string(model.optimizer) != "adamw") return kAdamRate;
      return stale ? model.default_async_lr : model.default_lr;
    case OptimizerKind::kAdagrad:
      return kAdagradRate;
    default:
      return stale || momentum == 0 ? model.default_async_lr * (1 - momentum) : model.default_lr;
  }
}

}  // namespace

absl::StatusOr<UpdatePlan> PlanUpdates(const TrainingOptions& options, const StrategyRow& strategy,
                                       const ModelRow& model, const StepPlan& steps) {
  UpdatePlan plan;
  if (strategy.asynchronous()) {
    plan.stale_by = strategy.name;
  } else if (UpdatesWithoutFlush(options)) {
    plan.stale_by = options.program;
  }
  const bool stale = !plan.stale_by.empty();
  PSRING_ASSIGN_OR_RETURN(plan.optimizer.kind,
                          ParseOptimizer(options.optimizer.empty() ? model.optimizer : options.optimizer));
  if (plan.optimizer.kind == OptimizerKind::kMomentum) {
    plan.optimizer.momentum = options.momentum >= 0 ? options.momentum
                              : stale               ? 0
                                                    : strategy.default_momentum;
    // The same update, without memory for a velocity.
    if (plan.optimizer.momentum == 0) plan.optimizer.kind = OptimizerKind::kSgd;
  }
  plan.schedule.base = options.lr == 0 ? DefaultRate(plan.optimizer, stale, model) : options.lr;
  PSRING_ASSIGN_OR_RETURN(plan.schedule.decay, ParseLrDecay(options.schedule));
  plan.optimizer.weight_decay = options.weight_decay;
  // Linear scaling counts the samples in one update.
  if (options.linear_scaling) {
    const double batch = static_cast<double>(options.batch) * steps.predictions * UpdatesOfStep(options);
    plan.schedule.scale = strategy.synchronous ? static_cast<double>(steps.global_batch) / batch
                                               : static_cast<double>(options.micro_batches);
  }
  plan.schedule.warmup_samples = std::llround(options.warmup_epochs * static_cast<double>(steps.data_count));
  plan.schedule.total_samples = steps.total_samples;
  return plan;
}

absl::Status CheckDevice(const TrainingOptions& options, const Device& device) {
  PSRING_ASSIGN_OR_RETURN(const Precision precision, ParsePrecision(options.precision));
  PSRING_RETURN_IF_ERROR(CheckPrecision(device, precision));
  if (!options.cuda_graph || device.gpu() >= 0) return absl::OkStatus();
  return InvalidArgument("--cuda_graph needs a GPU, but this device is ", device.name(), "; omit it");
}

absl::Status CheckSyncBatchNorm(const TrainingOptions& options, const StrategyRow& strategy) {
  if (!options.sync_batch_norm) return absl::OkStatus();
  const std::string backend = options.backend.empty() ? strategy.backend : options.backend;
  const auto with = [](const auto&... what) { return absl::StrCat("--sync_batch_norm with ", what...); };
  return FirstThatApplies(
      {{strategy.has_parameters_on_servers() || strategy.replicates,
        with(
            "--strategy ", strategy.name,
            ", whose workers have no process group; choose an all-reduce strategy such as ring, or omit it")},
       {strategy.uses_group && backend != "native" && backend != "gloo",
        with(backend, ", which has one call in progress at a time; choose native or gloo, or omit it")},
       {options.reference_workers > 1,
        with("--reference_workers, each of which is normalized on its own; use a larger --batch")},
       {options.drop_last == "false",
        with("--drop_last false: ranks need batches of equal size; omit one of them")}});
}

absl::Status CheckSyncBatchNorm(const TrainingOptions& options, const ParameterLayout& layout) {
  if (!options.sync_batch_norm || !layout.buffers().empty()) return absl::OkStatus();
  return InvalidArgument(
      "--sync_batch_norm is for models with batch normalization, such as resnet18; omit it for ",
      options.model);
}

absl::Status CheckTables(const TrainingOptions& options, const StrategyRow& strategy,
                         const OptimizerConfig& optimizer, const ParameterLayout& layout) {
  if (layout.tables().empty() && strategy.has_only_rows_on_servers()) {
    const std::string instead = options.workload.empty() ? Tr("use ring for $0", options.model) : "use ring";
    return InvalidTr("--strategy $0 needs a model with tables of rows, such as dlrm-small; $1", strategy.name,
                     instead);
  }
  if (layout.tables().empty()) return absl::OkStatus();
  PSRING_RETURN_IF_ERROR(CheckRowOptimizer(optimizer));
  const auto without = [&](absl::string_view flag, absl::string_view why) {
    return absl::StrCat(flag, " does not support the tables of ", options.model, why);
  };
  if (!TrainsTables(strategy)) {
    std::vector<std::string> names;
    for (const StrategyRow& row : StrategyRows()) {
      if (TrainsTables(row)) names.emplace_back(row.name);
    }
    return absl::InvalidArgumentError(without(absl::StrCat("--strategy ", strategy.name),
                                              absl::StrCat("; use one of ", absl::StrJoin(names, ", "))));
  }
  return FirstThatApplies(
      {{options.clip_norm > 0, without("--clip_norm", ", whose gradient is never complete; omit it")},
       {options.wire != "float32", without("--wire", ", whose rows are sent as float32; omit it")},
       {options.local_aggregation, without("--local_aggregation", "; omit it")},
       {options.clock == "virtual", without("--clock virtual", "; omit it")},
       {options.eval_every > 0,
        without("--eval_every", ", of which it would keep copies; they are evaluated at the end: omit it")}});
}

std::string StatisticsNote(const TrainingOptions& options, const StrategyRow& strategy, int world_size) {
  constexpr absl::string_view kRunning = "BatchNorm: evaluation uses the running statistics of ";
  if (world_size == 1 && options.reference_workers * options.replicas == 1) {
    return absl::StrCat(kRunning, "all batches");
  }
  if (options.sync_batch_norm && strategy.uses_group) {
    return absl::StrCat(kRunning, "all ranks' batches (--sync_batch_norm)");
  }
  if (strategy.replicates) return absl::StrCat(kRunning, "replica 0's batches");
  if (options.reference_workers > 1) {
    return absl::StrCat(kRunning, "the first of ", options.reference_workers,
                        " workers' batches, as rank 0 would");
  }
  const bool sends = strategy.uses_group && options.broadcast_buffers == "true";
  return absl::StrCat(
      kRunning, "rank 0's batches",
      sends ? ", which all ranks receive before every forward pass" : "; each rank has its own");
}

absl::Status CheckStrategy(const TrainingOptions& options, const StrategyRow& strategy, int world_size) {
  const std::string& given = options.strategy;
  PSRING_RETURN_IF_ERROR(CheckSyncBatchNorm(options, strategy));
  PSRING_RETURN_IF_ERROR(FirstThatApplies(
      {{strategy.number_below_workers && strategy.number >= world_size,
        absl::StrCat("--strategy ", given, " with ", world_size, world_size == 1 ? " worker" : " workers",
                     ": at most ", world_size - 1, " can be spare; give fewer, or more --workers")}}));
  PSRING_RETURN_IF_ERROR(CheckRanks(strategy, world_size * options.cp));
  PSRING_RETURN_IF_ERROR(CheckStragglers(options.straggler, world_size));
  const bool only_rows = strategy.has_only_rows_on_servers();
  PSRING_RETURN_IF_ERROR(FirstThatApplies(
      {{only_rows && options.clock == "virtual", Tr("--strategy $0 does not support --clock virtual, which "
                                                    "has no model of the rows of tables; omit it",
                                                    given)},
       {only_rows && options.ps_schedule == "serial",
        Tr("--strategy $0 does not support --ps_schedule serial, which is for servers that have all "
           "parameters; omit it",
           given)},
       {only_rows && options.on_worker_loss == "continue",
        Tr("--strategy $0 does not support --on_worker_loss continue, because its all-reduce needs every "
           "worker; omit it",
           given)}}));
  if (strategy.uses_servers) {
    PSRING_RETURN_IF_ERROR(CheckLocalAggregation(options, strategy));
    PSRING_RETURN_IF_ERROR(CheckRecovery(options, ServersOf(options, world_size)));
  }
  PSRING_RETURN_IF_ERROR(CheckShardFlags(options, strategy, world_size * options.cp));
  const char* const server_flag = strategy.uses_servers ? nullptr : ServerFlagGiven(options);
  return FirstThatApplies(
      {{!strategy.shards_weights && options.reshard != TrainingOptions().reshard,
        Tr("--reshard is for fsdp; omit it for $0", given)},
       {server_flag != nullptr,
        absl::StrCat(server_flag != nullptr ? server_flag : "",
                     " is for the strategies that have servers (such as ps-sync); omit it for ", given)},
       {strategy.single_process && world_size > 1,
        absl::StrCat("--strategy ", strategy.name, " is one process; it cannot have ", world_size,
                     " workers (",
                     strategy.replicates ? "--workers N are its devices"
                                         : "--reference_workers adds as many gradients",
                     ")")},
       {!strategy.replicates && options.replicas > 1,
        absl::StrCat("--workers is for --strategy data-parallel and --clock virtual; with ", given,
                     " every worker is a process, started by psring, torchrun, mpirun or srun")},
       {strategy.replicates && options.reference_workers > 1,
        "--reference_workers belongs to --strategy single, not to data-parallel"},
       {strategy.replicates && (options.straggler != "none" || options.jitter_ms != "none"),
        "--straggler and --jitter_ms slow processes down, but the replicas of data-parallel are threads of "
        "one process; omit them"},
       {strategy.replicates && options.clock == "virtual",
        "--clock virtual does not model data-parallel's copies; omit one of them"},
       {strategy.asynchronous() && options.clip_norm > 0,
        absl::StrCat(
            "--clip_norm is for synchronous strategies, which have one gradient to clip; omit it for ",
            given)},
       {!strategy.asynchronous() && options.staleness_lr != "none",
        Tr("--staleness_lr is for asynchronous strategies (ps-async, ps-ssp:K); omit it for $0, whose "
           "gradients are never stale",
           given)},
       {!strategy.communicates() && options.wire != "float32",
        absl::StrCat("--wire sets the type of gradients that are sent; omit it for ", given,
                     ", which sends none")},
       {strategy.number_below_workers && options.drop_last == "false",
        absl::StrCat("--drop_last false counts every sample once, and --strategy ", given,
                     " drops gradients; omit one of them")},
       {!strategy.single_process && options.reference_workers > 1,
        absl::StrCat("--reference_workers belongs to --strategy single, not to ", strategy.name)}});
}

absl::Status CheckLayout(const TrainingOptions& options, const StrategyRow& strategy, int workers) {
  PSRING_RETURN_IF_ERROR(CheckPipelineFlags(options, strategy, workers));
  return CheckStrategy(options, strategy, workers / ReplicaRanks(options));
}

bool SharedStepsAreOver(int64_t version, int workers, int64_t total_steps) {
  return version > workers * (total_steps - 1);
}

std::vector<std::string> PlanWarnings(const UpdatePlan& updates) {
  std::vector<std::string> warnings;
  if (!updates.stale_by.empty() && updates.optimizer.kind == OptimizerKind::kMomentum &&
      updates.optimizer.momentum >= .5) {
    warnings.push_back(
        Tr("--momentum $0 with $1 at --lr $2: stale gradients accumulate; at lr 0.05 this diverges with a "
           "staleness of 3",
           updates.optimizer.momentum, updates.stale_by, updates.schedule.base));
  }
  return warnings;
}

}  // namespace psring
