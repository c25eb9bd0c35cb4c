// Checks of CompareOptions.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cli/delays.h"
#include "common/text/translate.h"
#include "experiments/design/plan.h"
#include "trainer/programs/pipeline_flags.h"

namespace psring {
namespace {

// For each number of replicas, or with --cp of workers that have their weights; what divides the state of
// shards has no effect on others, or on a single one.
absl::Status CheckShardsOf(const StrategyRow& strategy, const CompareOptions& options) {
  std::vector<int> replicas;
  for (const int workers : options.workers) {
    replicas.push_back(workers / ReplicaRanks(options.training) * options.training.cp);
  }
  if (!options.layouts.empty()) replicas.clear();
  for (const Layout& layout : options.layouts) replicas.push_back(layout.dp * layout.cp);
  for (const int count : replicas) {
    TrainingOptions training = options.training;
    if (!strategy.shards_updates || count <= 1) training.dp_shard = 0;
    PSRING_RETURN_IF_ERROR(CheckShardFlags(training, strategy, count));
  }
  return absl::OkStatus();
}

// A flag for some strategies needs at least one of them in --strategies.
absl::Status CheckServerFlags(const CompareOptions& options) {
  const TrainingOptions& training = options.training;
  const bool servers_given = options.servers != std::vector<int>{0};
  const bool any_stream = std::ranges::count(options.server_wires, "stream") > 0;
  if (servers_given && training.server_placement == "colocated") {
    return InvalidTr("--server_placement colocated starts one server with each worker; omit --servers");
  }
  const std::vector<int>& counts =
      training.server_placement == "colocated" ? options.workers : options.servers;
  const int most_servers = counts.empty() ? 0 : *std::ranges::max_element(counts);
  std::vector<StrategyRow> strategies;
  for (const std::string& name : ComparedStrategies(options, HasTables(training))) {
    PSRING_ASSIGN_OR_RETURN(const StrategyRow strategy, FindStrategy(name));
    PSRING_RETURN_IF_ERROR(CheckShardsOf(strategy, options));
    if (strategy.uses_servers) {
      TrainingOptions of_strategy = training;
      of_strategy.strategy = name;
      PSRING_RETURN_IF_ERROR(CheckRecovery(of_strategy, most_servers));
    }
    if (strategy.asynchronous() && training.clip_norm > 0) {
      return InvalidTr(
          "--clip_norm is for synchronous strategies, which have one gradient to clip; omit it or $0", name);
    }
    strategies.push_back(strategy);
  }
  const auto any = [&](auto is) { return std::ranges::any_of(strategies, is); };
  const bool any_server = any(&StrategyRow::uses_servers);
  const char* of_parameters = training.ps_schedule == "serial"        ? "--ps_schedule serial"
                              : training.on_worker_loss == "continue" ? "--on_worker_loss continue"
                                                                      : nullptr;
  if (any_server && !any(&StrategyRow::has_parameters_on_servers) && of_parameters != nullptr) {
    return InvalidTr(
        "$0 is for servers that have all parameters (such as ps-sync); name one, or omit the flag",
        of_parameters);
  }
  if (any_server && !any(&StrategyRow::can_aggregate) && training.local_aggregation) {
    return InvalidTr(
        "--local_aggregation is for ps-sync, where all workers of a machine take the same step; name it, "
        "or omit the flag");
  }
  if (training.local_aggregation && options.workers == std::vector<int>{1}) {
    return InvalidTr(
        "--local_aggregation adds up the gradients of several workers; use more --workers, or omit it");
  }
  const char* server_flag = servers_given ? "--servers"
                            : any_stream  ? "--server_wire stream"
                                          : ServerFlagGiven(training);
  if (!any_server && server_flag != nullptr) {
    return InvalidTr("$0 is for parameter-server strategies (such as ps-sync); name one, or omit the flag",
                     server_flag);
  }
  if (!any(&StrategyRow::shards_weights) && training.reshard != TrainingOptions().reshard) {
    return InvalidTr("--reshard is for fsdp; name it, or omit the flag");
  }
  if (!any(&StrategyRow::shards_updates) && training.dp_shard > 0) {
    return InvalidTr("--dp_shard is for zero1, zero2 and fsdp; name one, or omit the flag");
  }
  if (!any(&StrategyRow::communicates) && training.wire != "float32") {
    return InvalidTr(
        "--wire sets the type of gradients that are sent; name a strategy that sends any, or omit the flag");
  }
  if (!any(&StrategyRow::asynchronous) && training.staleness_lr != "none") {
    return InvalidTr(
        "--staleness_lr is for asynchronous strategies (ps-async, ps-ssp:K); name one, or omit the flag");
  }
  return absl::OkStatus();
}

absl::Status CheckEnough(int64_t global_batch, int64_t samples) {
  if (global_batch <= samples) return absl::OkStatus();
  return InvalidTr("--global_batch $0 exceeds the $1 samples of the data", global_batch, samples);
}

// `shares`: the batches that the workers compute in a step, all together.
absl::Status CheckGlobalBatch(int64_t global_batch, int64_t shares, int workers, int64_t samples) {
  if (global_batch % shares != 0) {
    const int64_t below = global_batch / shares * shares;
    return InvalidTr(
        "--global_batch $0 does not divide into $1 equal batches for $2 $3; use $4$5, or omit $6 from "
        "--workers",
        global_batch, shares, workers, workers == 1 ? "worker" : "workers",
        below > 0 ? absl::StrCat(below, " or ") : "", below + shares, workers);
  }
  return CheckEnough(global_batch, samples);
}

// Of layouts: the micro-batches of a step must be equal.
absl::Status CheckMicroBatches(const CompareOptions& options, int64_t samples) {
  const int64_t global_batch = options.training.global_batch;
  for (const int64_t count : options.micro_batches) {
    if (global_batch % count == 0) continue;
    return InvalidTr(
        "--global_batch $0 does not divide into $1 equal micro-batches; use $2, or omit $1 from "
        "--micro_batches",
        global_batch, count, (global_batch / count + 1) * count);
  }
  return CheckEnough(global_batch, samples);
}

}  // namespace

absl::Status CheckVirtualStrategy(const StrategyRow& strategy, const TrainingOptions& training) {
  if (training.clock != "virtual") return absl::OkStatus();
  if (strategy.replicates) {
    return InvalidArgument("--clock virtual has no model of the copies of ", strategy.name, "; omit ",
                           strategy.name);
  }
  if (strategy.has_only_rows_on_servers()) {
    return InvalidTr("--clock virtual has no model of the rows of tables; omit $0", strategy.name);
  }
  if (!strategy.uses_group || strategy.backend == "native") return absl::OkStatus();
  return InvalidArgument("--clock virtual supports psring's own collectives, not ", strategy.name);
}

absl::Status CheckCompareOptions(const CompareOptions& options) {
  bool any_workers = options.strategies.empty();
  for (const std::string& name : options.strategies) {
    PSRING_ASSIGN_OR_RETURN(const StrategyRow strategy, FindStrategy(name, options.strategies));
    for (int count : options.workers) {
      PSRING_RETURN_IF_ERROR(
          CheckRanks(strategy, std::max(1, count / ReplicaRanks(options.training)) * options.training.cp));
      if (!strategy.number_below_workers || strategy.number < count) continue;
      return InvalidTr(
          count == 1
              ? TrNoop(
                    "$0 with 1 worker: at most $1 can be spare; omit $2 from --workers, or use a smaller $3")
              : TrNoop("$0 with $2 workers: at most $1 can be spare; omit $2 from --workers, or use a "
                       "smaller $3"),
          name, count - 1, count, strategy.number_letter);
    }
    any_workers = any_workers || !strategy.single_process;
    if (strategy.drops_gradients && options.training.drop_last == "false") {
      return InvalidTr("--drop_last false counts every sample once, but $0 drops gradients; omit one of them",
                       name);
    }
    if (options.training.reference_workers > 1 && name != "single") {
      return InvalidTr(
          "--reference_workers is for the strategy single, which represents several workers; omit $0", name);
    }
  }
  for (int count : options.workers) {
    if (any_workers) PSRING_RETURN_IF_ERROR(CheckStragglers(options.training.straggler, count));
  }
  if (options.training.reference_workers > 1 && options.strategies.empty()) {
    return InvalidTr("--reference_workers is only for --strategies single");
  }
  if (options.training.workload.empty()) {
    PSRING_RETURN_IF_ERROR(FindModelRow(options.training.model).status());
  }
  if (options.workers.empty()) return absl::InvalidArgumentError("--workers needs a number from 1 to 64");
  const bool simulated = options.training.clock == "virtual";
  const int most = simulated ? kMaxLogicalWorkers : kMaxWorkers;
  for (int count : options.workers) {
    if (count < 1 || count > most) {
      return InvalidTr(simulated
                           ? TrNoop("--workers must be from 1 to $0, not $1")
                           : TrNoop("--workers must be from 1 to $0 (256 with --clock virtual), not $1"),
                       most, count);
    }
  }
  const int each = options.training.ranks_per_process;
  for (int count : options.workers) {
    if (count < each || count % each == 0) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "--workers %d with --ranks_per_process %d: %d is not a multiple of %d; use a multiple, "
        "or fewer workers, which share one process",
        count, each, count, each));
  }
  PSRING_RETURN_IF_ERROR(CheckServerFlags(options));
  PSRING_RETURN_IF_ERROR(CheckLayouts(options));
  if (options.repeats < 0) return absl::InvalidArgumentError("--repeats must not be negative");
  return absl::OkStatus();
}

absl::Status CheckBatches(const CompareOptions& options, int64_t samples) {
  const TrainingOptions& training = options.training;
  if (!options.layouts.empty()) return CheckMicroBatches(options, samples);
  bool one_process = !options.strategies.empty();
  for (const std::string& name : options.strategies) {
    PSRING_ASSIGN_OR_RETURN(const StrategyRow strategy, FindStrategy(name));
    one_process = one_process && strategy.single_process && !strategy.replicates;
  }
  for (int count : one_process ? std::vector<int>{ReplicaRanks(training)} : options.workers) {
    const int workers = count / ReplicaRanks(training);  // that have samples of their own
    const int64_t shares = int64_t{workers} * training.reference_workers * training.micro_batches;
    if (training.global_batch > 0) {
      PSRING_RETURN_IF_ERROR(CheckGlobalBatch(training.global_batch, shares, workers, samples));
      continue;
    }
    if (training.drop_last == "false" || shares * training.batch <= samples) continue;
    return InvalidTr("--batch $0 times $1 $2 exceeds the $3 samples of the data", training.batch, shares,
                     shares > workers ? "micro-batches"
                     : shares == 1    ? "worker"
                                      : "workers",
                     samples);
  }
  return absl::OkStatus();
}

bool GoesBeyondOneGpu(const CompareOptions& options, int gpus) {
  const TrainingOptions& training = options.training;
  const bool on_gpu = training.device != "cpu" && !training.oversubscribe && training.workload.empty() &&
                      training.clock != "virtual";
  return gpus == 1 && on_gpu && options.layouts.empty() &&
         std::ranges::any_of(options.workers, [](int count) { return count > 1; });
}

std::vector<int> DefaultWorkers(const TrainingOptions& training, int gpus) {
  const bool on_gpus = training.device == "auto" || training.device == "cuda";
  if (gpus < 2 || !on_gpus || training.oversubscribe || training.clock == "virtual") return {2, 4};
  std::vector<int> workers;
  for (int count = 2; count < gpus; count *= 2) workers.push_back(count);
  workers.push_back(gpus);
  return workers;
}

std::string DeviceForAll(const TrainingOptions& training, const std::vector<int>& workers, int gpus) {
  if (training.device != "auto" || training.oversubscribe || gpus == 0) return training.device;
  const int most = workers.empty() ? 1 : *std::ranges::max_element(workers);
  return gpus >= most ? "auto" : "cpu";
}

}  // namespace psring
