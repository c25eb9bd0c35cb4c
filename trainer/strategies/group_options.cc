#include "trainer/strategies/group_options.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/errors.h"
#include "common/text/translate.h"

namespace psring {
namespace {

bool TakesBackend(const StrategyRow& strategy) { return strategy.uses_group && strategy.backend == "native"; }

bool HasNccl() { return CheckGroupOptions({.backend = "nccl"}, Collective::kAllReduce).ok(); }

std::string BackendOf(const StrategyRow& strategy, const TrainingOptions& options, int gpu) {
  if (TakesBackend(strategy) && !options.backend.empty()) return options.backend;
  // NCCL has one call in progress at a time; the ranks of a replica exchange during the sums of gradients.
  const bool is_ring = (strategy.name == "ring" || strategy.shards_updates) && options.tls.empty() &&
                       ReplicaRanks(options) == 1;
  return is_ring && gpu >= 0 && HasNccl() ? "nccl" : strategy.backend;
}

// For a strategy that shards_updates.
absl::Status CheckShards(const std::string& backend) {
  const auto check = [](const std::string& name) {
    const absl::Status scatters = CheckGroupOptions({.backend = name}, Collective::kReduceScatter);
    return scatters.ok() ? CheckGroupOptions({.backend = name}, Collective::kAllGather) : scatters;
  };
  const absl::Status status = check(backend);
  if (status.ok()) return status;
  std::vector<std::string> others;
  for (const BackendRow& row : Backends()) {
    if (check(row.name).ok()) others.emplace_back(row.name);
  }
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), "; choose --backend ", absl::StrJoin(others, " or ")));
}

}  // namespace

GroupOptions GroupOptionsOf(const StrategyRow& strategy, const TrainingOptions& options, int gpu) {
  const std::string backend = BackendOf(strategy, options, gpu);
  const bool rounds_on_host = backend == "native" && options.wire != "float32";
  return {.backend = backend,
          .algorithm = strategy.algorithm,
          .transport = strategy.transport.empty() ? options.transport : strategy.transport,
          .timeout = absl::Seconds(options.timeout_s),
          .gpu = rounds_on_host ? -1 : gpu};
}

std::string BackendNote(const StrategyRow& strategy, const TrainingOptions& options, int gpu) {
  const std::string backend = BackendOf(strategy, options, gpu);
  if (!TakesBackend(strategy) || !options.backend.empty() || backend == strategy.backend) return "";
  return Tr("--strategy $0 between GPUs uses NCCL's ring; give --backend $1 for psring's own", strategy.name,
            strategy.backend);
}

absl::Status CheckGroup(const StrategyRow& strategy, const TrainingOptions& options) {
  if (!strategy.uses_group) return absl::OkStatus();
  const std::string backend = BackendOf(strategy, options, /*gpu=*/-1);
  if (options.ranks_per_process > 1 && backend == "mpi") {
    return InvalidArgument("strategy ", strategy.name,
                           ": MPI has one rank per process; omit --ranks_per_process");
  }
  if (!options.tls.empty() && backend != "native") {
    return InvalidArgument("strategy ", strategy.name, ": ", backend,
                           " opens its own connections; omit --tls");
  }
  absl::Status status = CheckGroupOptions(GroupOptionsOf(strategy, options), Collective::kAllReduce);
  if (status.ok() && strategy.shards_updates) status = CheckShards(backend);
  return Prefixed(status, "strategy ", strategy.name, ": ");
}

absl::Status CheckGroupFlagsCount(const StrategyRow& strategy, const TrainingOptions& options) {
  if (!options.backend.empty() && !TakesBackend(strategy) && options.backend != strategy.backend) {
    return InvalidArgument("--backend ", options.backend, " has no effect with --strategy ", strategy.name,
                           strategy.uses_group ? absl::StrCat(", which always uses ", strategy.backend)
                                               : ", which has no collectives",
                           "; omit it");
  }
  if (options.transport != "auto" && !strategy.transport.empty() && options.transport != strategy.transport) {
    return InvalidArgument("--transport ", options.transport, " has no effect with --strategy ",
                           strategy.name, ", which always uses ", strategy.transport, "; omit it");
  }
  if (options.transport != "auto" && !strategy.communicates() && ReplicaRanks(options) == 1) {
    return InvalidArgument("--transport ", options.transport, " has no effect with --strategy ",
                           strategy.name, ", which does not communicate; omit it");
  }
  return absl::OkStatus();
}

}  // namespace psring
