// outcome.json: what a launch measured in addition to its processes' records.
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/io/files.h"
#include "experiments/compare/runner.h"
#include "experiments/runs/run_folder.h"
#include "experiments/runs/untrusted_json.h"
#include "experiments/summary/time_scale.h"

namespace psring {
namespace {

struct Counter {
  const char* name;
  double NetworkFigures::*value;
};
constexpr Counter kCounters[] = {{"retransmitted_segments", &NetworkFigures::retransmitted_segments},
                                 {"timeouts", &NetworkFigures::timeouts},
                                 {"queue_drops", &NetworkFigures::queue_drops},
                                 {"again_ms", &NetworkFigures::again_ms}};

std::string OutcomePath(const std::string& folder) { return absl::StrCat(folder, "/outcome.json"); }

}  // namespace

absl::Status WriteOutcome(const Launched& launched, const std::string& folder) {
  nlohmann::ordered_json json = {{"wall_s", launched.wall_s}, {"foreign_cpu_pct", launched.foreign_cpu_pct}};
  if (launched.records.network) {
    for (const Counter& counter : kCounters) {
      json["network_per_step"][counter.name] = (*launched.records.network).*counter.value;
    }
  }
  return WriteFile(OutcomePath(folder), json.dump(2) + "\n");
}

absl::StatusOr<Launched> ReadLaunched(const Configuration& configuration, const std::string& folder) {
  Launched launched;
  PSRING_ASSIGN_OR_RETURN(const std::string text, ReadFile(OutcomePath(folder)));
  const UntrustedJson json = ParseUntrusted(text);
  launched.wall_s = NumberAt(json, "wall_s", 0);
  launched.foreign_cpu_pct = NumberAt(json, "foreign_cpu_pct", 0);
  PSRING_ASSIGN_OR_RETURN(launched.records,
                          ReadRecords(folder, configuration.ranks(), configuration.servers()));
  if (json.is_object() && json.contains("network_per_step")) {
    NetworkFigures& network = launched.records.network.emplace();
    for (const Counter& counter : kCounters) {
      network.*counter.value = NumberAt(json["network_per_step"], counter.name, 0);
    }
  }
  DivideTimes(configuration.training.time_scale, launched.records);
  return launched;
}

}  // namespace psring
