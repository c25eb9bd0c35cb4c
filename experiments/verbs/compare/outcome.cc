// outcome.json: what a launch measured in addition to its processes' records.
#include <algorithm>
#include <climits>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/io/files.h"
#include "common/io/hash.h"
#include "common/io/json_object.h"
#include "common/io/json_text.h"
#include "common/text/translate.h"
#include "experiments/analysis/launch_figures.h"
#include "experiments/run_folder/run_folder.h"
#include "experiments/verbs/compare/prepare.h"

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

// 0 if it was not a number when it was written, or earlier versions did not write it.
absl::StatusOr<double> FigureAt(const JsonObject& json, const char* key) {
  constexpr double kMax = 1e18;
  if (!json.Has(key)) return 0.0;
  PSRING_ASSIGN_OR_RETURN(const double value, json.NumberOrNull(key, -kMax, kMax));
  return std::isnan(value) ? 0.0 : value;
}

// Of the files that the report reads. After a power cut, a file may be empty or contain zeros.
absl::StatusOr<std::string> HashOfRecords(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    for (const char* kind : {"launch.json", "steps-", "result-", "trace-"}) {
      if (absl::StartsWith(name, kind)) names.push_back(name);
    }
  }
  if (error) return absl::UnavailableError(Tr("cannot read $0: $1", folder, Translation(error.message())));
  std::ranges::sort(names);
  Hasher hasher;
  for (const std::string& name : names) {
    PSRING_ASSIGN_OR_RETURN(const std::string text,
                            ReadFile(absl::StrCat(folder, "/", name), kMaxRecordBytes));
    hasher.Add(name.data(), name.size());
    hasher.Add(text.data(), text.size());
  }
  return hasher.Hex();
}

std::string OutcomePath(const std::string& folder) { return absl::StrCat(folder, "/outcome.json"); }

}  // namespace

absl::Status WriteOutcome(const Launched& launched, const std::string& folder) {
  nlohmann::ordered_json json = {{"wall_s", launched.wall_s},
                                 {"foreign_cpu_pct", launched.records.foreign_cpu_pct}};
  if (launched.records.other_psring > 0) json["other_psring"] = launched.records.other_psring;
  if (launched.records.network) {
    for (const Counter& counter : kCounters) {
      json["network_per_step"][counter.name] = (*launched.records.network).*counter.value;
    }
  }
  PSRING_ASSIGN_OR_RETURN(json["records_hash"], HashOfRecords(folder));
  return WriteFile(OutcomePath(folder), JsonText(json, 2) + "\n");
}

absl::StatusOr<Launched> ReadLaunched(const Configuration& configuration, const std::string& folder) {
  Launched launched;
  PSRING_ASSIGN_OR_RETURN(const std::string text, ReadFile(OutcomePath(folder)));
  PSRING_ASSIGN_OR_RETURN(const JsonObject json, JsonObject::Parse(text, kMaxTextBytes, OutcomePath(folder)));
  PSRING_ASSIGN_OR_RETURN(launched.wall_s, FigureAt(json, "wall_s"));
  if (json.Has("records_hash")) {
    constexpr size_t kMaxHashBytes = 64;
    PSRING_ASSIGN_OR_RETURN(const std::string then, json.Text("records_hash", kMaxHashBytes));
    PSRING_ASSIGN_OR_RETURN(const std::string now, HashOfRecords(folder));
    if (then != now) return absl::DataLossError(absl::StrCat(folder, ": a record is missing or damaged"));
  }
  RunRecords& records = launched.records;
  PSRING_ASSIGN_OR_RETURN(records, ReadRecords(folder, configuration.ranks(), configuration.servers()));
  PSRING_ASSIGN_OR_RETURN(records.foreign_cpu_pct, FigureAt(json, "foreign_cpu_pct"));
  PSRING_ASSIGN_OR_RETURN(records.other_psring, json.WholeNumber<int>("other_psring", 0, INT_MAX, 0));
  if (json.Has("network_per_step")) {
    PSRING_ASSIGN_OR_RETURN(const JsonObject per_step, json.Object("network_per_step"));
    NetworkFigures& network = records.network.emplace();
    for (const Counter& counter : kCounters) {
      PSRING_ASSIGN_OR_RETURN(network.*counter.value, FigureAt(per_step, counter.name));
    }
  }
  DivideTimes(configuration.training.time_scale, records);
  return launched;
}

}  // namespace psring
