#include "trainer/group_options.h"

#include <string_view>

#include "absl/strings/str_cat.h"

namespace psring {
namespace {

bool HasGroup(const StrategyRow& strategy) { return strategy.needs == Needs::kProcessGroup; }

bool TakesBackend(const StrategyRow& strategy) {
  return HasGroup(strategy) && std::string_view(strategy.backend) == "native";
}

std::string BackendOf(const StrategyRow& strategy, const TrainingOptions& options) {
  return TakesBackend(strategy) && !options.backend.empty() ? options.backend : strategy.backend;
}

bool TakesFabric(const StrategyRow& strategy, const TrainingOptions& options) {
  if (strategy.needs == Needs::kParameterServer) return true;
  return HasGroup(strategy) && BackendOf(strategy, options) != "nccl";
}

}  // namespace

GroupOptions GroupOptionsOf(const StrategyRow& strategy, const TrainingOptions& options) {
  return {.backend = BackendOf(strategy, options),
          .algorithm = strategy.algorithm,
          .transport = TakesFabric(strategy, options) ? options.fabric : "auto",
          .timeout = absl::Seconds(options.timeout_s)};
}

absl::Status CheckGroup(const StrategyRow& strategy, const TrainingOptions& options) {
  if (!HasGroup(strategy)) return absl::OkStatus();
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
  if (options.fabric != "auto" && !TakesFabric(strategy, options)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--fabric ", options.fabric, " does nothing for --strategy ", strategy.name,
        HasGroup(strategy) ? ": nccl chooses its wires itself" : ", which sends nothing", "; leave it out"));
  }
  return absl::OkStatus();
}

}  // namespace psring
