#include "trainer/strategies/group_options.h"

#include <string_view>

#include "absl/strings/str_cat.h"

namespace psring {
namespace {

bool HasGroup(const StrategyRow& strategy) { return strategy.needs == Needs::kProcessGroup; }

bool TakesBackend(const StrategyRow& strategy) {
  return HasGroup(strategy) && std::string_view(strategy.backend) == "native";
}

bool HasNccl() { return CheckGroupOptions({.backend = "nccl"}, Collective::kAllReduce).ok(); }

std::string BackendOf(const StrategyRow& strategy, const TrainingOptions& options, int gpu) {
  if (TakesBackend(strategy) && !options.backend.empty()) return options.backend;
  const bool is_ring = std::string_view(strategy.name) == "ring";
  return is_ring && gpu >= 0 && HasNccl() ? "nccl" : strategy.backend;
}

bool TakesTransport(const StrategyRow& strategy) { return strategy.needs != Needs::kNothing; }

}  // namespace

GroupOptions GroupOptionsOf(const StrategyRow& strategy, const TrainingOptions& options, int gpu) {
  const std::string backend = BackendOf(strategy, options, gpu);
  const bool rounds_on_host = backend == "native" && options.wire != "float32";
  return {.backend = backend,
          .algorithm = strategy.algorithm,
          .transport = options.transport,
          .timeout = absl::Seconds(options.timeout_s),
          .gpu = rounds_on_host ? -1 : gpu};
}

absl::Status CheckGroup(const StrategyRow& strategy, const TrainingOptions& options) {
  if (!HasGroup(strategy)) return absl::OkStatus();
  if (options.ranks_per_process > 1 && BackendOf(strategy, options, /*gpu=*/-1) == "mpi") {
    return absl::InvalidArgumentError(absl::StrCat(
        "strategy ", strategy.name, ": MPI has one rank a process; leave --ranks_per_process out"));
  }
  const absl::Status status = CheckGroupOptions(GroupOptionsOf(strategy, options), Collective::kAllReduce);
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("strategy ", strategy.name, ": ", status.message()));
}

absl::Status CheckGroupFlagsCount(const StrategyRow& strategy, const TrainingOptions& options) {
  if (!options.backend.empty() && !TakesBackend(strategy) && options.backend != strategy.backend) {
    return absl::InvalidArgumentError(
        absl::StrCat("--backend ", options.backend, " does nothing for --strategy ", strategy.name,
                     HasGroup(strategy) ? absl::StrCat(", which is ", strategy.backend, "'s own")
                                        : ", which has no collectives",
                     "; leave it out"));
  }
  if (options.transport != "auto" && !TakesTransport(strategy)) {
    return absl::InvalidArgumentError(absl::StrCat("--transport ", options.transport,
                                                   " does nothing for --strategy ", strategy.name,
                                                   ", which sends nothing; leave it out"));
  }
  return absl::OkStatus();
}

}  // namespace psring
