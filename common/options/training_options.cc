// What the options come to together, and which of them contradict each other.
#include "common/options/training_options.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/options/training_flags.h"
#include "common/workloads/workload.h"

namespace psring {

int64_t WorkerBatch(const TrainingOptions& options) { return int64_t{options.batch} * options.accumulate; }

bool Checkpoints(const TrainingOptions& options) {
  return !options.checkpoint_dir.empty() || options.checkpoint_every > 0;
}

bool ServerReturns(const TrainingOptions& options, int servers) {
  if (servers > 1 && absl::StartsWith(options.strategy, "ps-backup")) return false;
  return options.max_restarts > 0 && servers > 0 && !options.align_steps;
}

absl::Status CheckRecovery(const TrainingOptions& options, int servers) {
  const bool continues = options.on_worker_loss == "continue";
  if (options.clock == "virtual") {
    const char* flag = options.max_restarts > 0          ? "--max_restarts"
                       : options.checkpoint_every > 0    ? "--checkpoint_every"
                       : !options.checkpoint_dir.empty() ? "--checkpoint_dir"
                       : !options.resume.empty()         ? "--resume"
                       : continues                       ? "--on_worker_loss continue"
                                                         : nullptr;
    if (flag == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " with --clock virtual: nothing dies in simulated time; leave it out"));
  }
  if (!options.workload.empty() && (Checkpoints(options) || !options.resume.empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat("--workload ", options.workload,
                     " trains nothing, so there is nothing to keep: leave the checkpoints out"));
  }
  if (!continues) return absl::OkStatus();
  const bool backup = absl::StartsWith(options.strategy, "ps-backup");
  const char* hindrance = options.align_steps              ? "--align_steps"
                          : options.clip_norm > 0          ? "--clip_norm"
                          : backup && servers > 1          ? "several servers of ps-backup"
                          : backup && Checkpoints(options) ? "checkpoints of ps-backup"
                                                           : nullptr;
  if (hindrance == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--on_worker_loss continue with ", hindrance, ": they need every worker; leave one out"));
}

namespace {

// What only a strategy with a parameter server understands: `see(flag, member)`.
template <typename See>
void ForEachServerFlag(const See& see) {
  see("--servers", &TrainingOptions::servers);
  see("--server_placement", &TrainingOptions::server_placement);
  see("--ps_schedule", &TrainingOptions::ps_schedule);
  see("--on_worker_loss continue", &TrainingOptions::on_worker_loss);
  see("--worker_timeout", &TrainingOptions::worker_timeout_s);
  see("--debug.reject_nonfinite", &TrainingOptions::reject_nonfinite);
  see("--debug.staging_mb", &TrainingOptions::staging_mb);
}

}  // namespace

const char* ServerFlagGiven(const TrainingOptions& options) {
  TrainingOptions asked = options;
  if (asked.on_worker_loss == "stop") asked.on_worker_loss.clear();  // the others stop anyway
  const TrainingOptions standard;
  const char* given = nullptr;
  ForEachServerFlag([&](const char* flag, auto member) {
    if (given == nullptr && asked.*member != standard.*member) given = flag;
  });
  return given;
}

void LeaveServersOut(TrainingOptions& options) {
  const TrainingOptions standard;
  ForEachServerFlag([&](const char*, auto member) { options.*member = standard.*member; });
}

int ServersOf(const TrainingOptions& options, int workers) {
  if (options.servers > 0) return options.servers;
  return options.server_placement == "colocated" ? workers : 1;
}

absl::Status ApplyWorkload(TrainingOptions& options) {
  const TrainingOptions standard;
  if (options.workload.empty()) {
    if (options.compute_speedup == standard.compute_speedup) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "--compute_speedup is of a recorded workload; add --workload, or leave it out");
  }
  PSRING_ASSIGN_OR_RETURN(const Workload workload, LoadWorkload(options.workload));
  std::string flag;
  if (options.model != standard.model) flag = "--model";
  if (options.width != standard.width) flag = "--width";
  if (options.data != standard.data) flag = "--data";
  if (options.data_dir != standard.data_dir) flag = "--data_dir";
  if (options.precision != standard.precision) flag = "--precision";
  if (options.micro_batches != standard.micro_batches) flag = "--micro_batches";
  if (options.eval_every != standard.eval_every) flag = "--eval_every";
  if (options.batch != standard.batch && options.batch != workload.batch) flag = "--batch";
  if (!flag.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " is settled by --workload ", options.workload, "; leave one of them out"));
  }
  options.batch = workload.batch;
  options.evaluate = false;
  if (options.optimizer == "momentum" && options.momentum < 0) options.momentum = 0;
  return absl::OkStatus();
}

absl::Status ValidateTrainingOptions(const TrainingOptions& options) {
  PSRING_RETURN_IF_ERROR(CheckFlagValues(options));

  std::vector<std::string> budgets;
  if (options.steps != 0) budgets.push_back("--steps");
  if (options.samples != 0) budgets.push_back("--samples");
  if (options.epochs != 0) budgets.push_back("--epochs");
  if (budgets.size() > 1) {
    const std::string last = budgets.back();
    budgets.pop_back();
    return absl::InvalidArgumentError(absl::StrCat(absl::StrJoin(budgets, ", "), " and ", last,
                                                   " each say how long to train; give one of them"));
  }
  if (options.micro_batches > 1 && options.strategy != "single") {
    return absl::InvalidArgumentError(
        absl::StrCat("--micro_batches is for --strategy single; leave it out for ", options.strategy));
  }
  if (options.optimizer != "momentum" && options.momentum > 0) {
    return absl::InvalidArgumentError(absl::StrCat("--momentum ", options.momentum,
                                                   " does nothing with --optimizer ", options.optimizer,
                                                   "; leave it out or choose momentum"));
  }
  if (options.warmup_epochs > 0 && !options.linear_scaling) {
    return absl::InvalidArgumentError(
        "--warmup_epochs rises from --lr to the rate that --linear_scaling gives; give both, or neither");
  }
  if (options.servers > 0 && options.server_placement == "colocated") {
    return absl::InvalidArgumentError(
        "--server_placement colocated has one server beside each worker; leave --servers out");
  }
  if (options.score == "validation" && options.validation == 0) {
    return absl::InvalidArgumentError(
        "--debug.score validation needs --validation N, the samples to hold out");
  }
  if (options.cuda_graph) {
    const char* hindrance = options.device == "cpu"      ? "--device cpu: it is for GPUs"
                            : options.clock == "virtual" ? "--clock virtual, which computes on the CPU"
                            : !options.workload.empty() ? "--workload, whose computing is a timer of the host"
                            : options.strategy == "dp"  ? "--strategy dp, whose replicas are threads"
                                                        : nullptr;
    if (hindrance != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--cuda_graph does not go with ", hindrance, "; leave one of them out"));
    }
  }
  PSRING_RETURN_IF_ERROR(CheckRecovery(options, options.servers));
  if (options.ranks_per_process > 1 && options.clock == "virtual") {
    return absl::InvalidArgumentError(
        "--ranks_per_process with --clock virtual, which is one process for all workers: leave one of them "
        "out");
  }
  if (options.clock == "wall") {
    const TrainingOptions standard;
    for (const auto& [flag, given] : {std::pair{"--compute_ms", options.compute_ms != standard.compute_ms},
                                      {"--network_ms", options.network_ms != standard.network_ms},
                                      {"--serve_ms", options.serve_ms != standard.serve_ms}}) {
      if (given) return absl::InvalidArgumentError(absl::StrCat(flag, " is for --clock virtual; give both"));
    }
  } else if (options.servers > 1 || options.server_placement == "colocated") {
    return absl::InvalidArgumentError("--clock virtual has one server; leave --servers and colocated out");
  } else if (options.transport == "shm") {
    return absl::InvalidArgumentError(
        "--transport shm with --clock virtual: nothing is sent; give --network_ms, the time of one gradient");
  } else if (options.wire != "float32") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--wire ", options.wire, " with --clock virtual: its gradients are float32; leave it out"));
  } else if (options.check_replicas) {
    return absl::InvalidArgumentError(
        "--check_replicas with --clock virtual: logical workers share one set of weights; leave it out");
  } else if (options.ps_schedule == "serial") {
    return absl::InvalidArgumentError(
        "--ps_schedule serial with --clock virtual: a whole gradient moves at once anyway; leave it out");
  } else if (options.micro_batches > 1) {
    return absl::InvalidArgumentError(
        "--micro_batches with --clock virtual: give --workers instead, each is a batch");
  }
  if (!options.evaluate && options.eval_every > 0) {
    return absl::InvalidArgumentError("--eval_every and --no_eval contradict each other; give one of them");
  }
  return absl::OkStatus();
}

}  // namespace psring
