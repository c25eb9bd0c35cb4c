#include "experiments/verbs/bench/result.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/read_file.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/stats/statistics.h"
#include "ring_worker/schedules/default_algorithm.h"

namespace psring {
namespace {

constexpr size_t kMaxSamples = 1 << 20, kMaxRanks = 1 << 16, kMaxNameBytes = 4096;
constexpr double kMaxUs = 1e15;

// The samples of another round. Fields that are absent keep their defaults.
absl::StatusOr<SampleFigures> SamplesFrom(const JsonObject& json) {
  SampleFigures figures;
  PSRING_ASSIGN_OR_RETURN(figures.times_us, json.Numbers("times_us", kMaxSamples, 0, kMaxUs));
  PSRING_ASSIGN_OR_RETURN(figures.calls_per_turn,
                          json.WholeNumber<int64_t>("calls_per_turn", 0, INT64_MAX, 0));
  PSRING_ASSIGN_OR_RETURN(figures.wrong, json.WholeNumber<int64_t>("wrong", -1, INT64_MAX, -1));
  return figures;
}

absl::StatusOr<SampleFigures> SamplesAt(const JsonObject& row, const char* key) {
  if (!row.Has(key)) return SampleFigures();
  PSRING_ASSIGN_OR_RETURN(const JsonObject json, row.Object(key));
  return SamplesFrom(json);
}

void Add(const SampleFigures& more, SampleFigures& figures) {
  figures.times_us.insert(figures.times_us.end(), more.times_us.begin(), more.times_us.end());
  figures.calls_per_turn = more.calls_per_turn;
  figures.wrong = std::max(figures.wrong, more.wrong);
}

struct Speed {
  std::string name;  // of the combination
  double busbw = 0;  // GB/s
};

std::string Text(const Speed& speed) { return absl::StrFormat("%s: %.3g GB/s", speed.name, speed.busbw); }

// All-reduces of `bytes`, by number of workers.
std::map<int, std::vector<Speed>> AllReducesOf(const BenchResult& result, uint64_t bytes, int root) {
  std::map<int, std::vector<Speed>> by_workers;
  for (const BenchTable& table : result.tables()) {
    const BenchCombination& combination = table.combination;
    if (combination.collective != kAllReduce || combination.workers < 2) continue;
    for (const BenchCell& cell : table.cells) {
      if (cell.bytes != bytes) continue;
      const CollectiveRow row = result.RowOf(table, cell, root);
      double busbw = 0;
      for (const PlacementFigures* figures : {&row.out_of_place, &row.in_place}) {
        if (figures->measured) busbw = std::max(busbw, figures->busbw);
      }
      by_workers[combination.workers].push_back({combination.name(), busbw});
    }
  }
  return by_workers;
}

// The workers' name of the limit; empty if there is none.
std::string LimitKindOf(const BenchCombination& combination, const std::string& transport) {
  if (transport == "shm") return combination.push_pull() ? "fused" : "shared";
  if (transport == "tcp") return combination.push_pull() ? "raw" : "tcp";
  return "";
}

}  // namespace

double SampleFigures::Median() const { return Quantile(times_us, 0.5); }
double SampleFigures::Mean() const { return psring::Mean(times_us); }
double SampleFigures::Least() const { return Quantile(times_us, 0); }
double SampleFigures::Most() const { return Quantile(times_us, 1); }

double SampleFigures::StandardDeviation() const {
  if (times_us.empty()) return 0;
  const double mean = Mean();
  double sum = 0;
  for (const double time : times_us) sum += (time - mean) * (time - mean);
  return std::sqrt(sum / static_cast<double>(times_us.size()));
}

double SampleFigures::NearestRank(int percent) const {
  if (times_us.empty()) return 0;
  std::vector<double> sorted = times_us;
  std::ranges::sort(sorted);
  const size_t rank = (sorted.size() * static_cast<size_t>(percent) + 99) / 100;
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

BenchResult::BenchResult(const BenchPlan& plan) : plan_(plan) {
  for (const BenchCombination& combination : plan.combinations) {
    tables_.push_back(
        {.combination = combination, .algorithm = combination.algorithm, .transport = combination.transport});
  }
}

BenchCell& BenchResult::CellOf(BenchTable& table, const std::string& type, const std::string& op,
                               uint64_t bytes) {
  for (BenchCell& cell : table.cells) {
    if (cell.type == type && cell.op == op && cell.bytes == bytes) return cell;
  }
  return table.cells.emplace_back(BenchCell{.type = type, .op = op, .bytes = bytes});
}

int BenchRank::device_index() const {
  int index = 0;
  const size_t colon = device.find(':');
  return colon != std::string::npos && absl::SimpleAtoi(device.substr(colon + 1), &index) ? index : 0;
}

bool BenchResult::Note(const BenchLaunch& launch, const std::string& line) {
  if (line.empty() || line[0] != '{') return false;
  const absl::StatusOr<JsonObject> json = JsonObject::Parse(line, kMaxTextBytes);
  if (!json.ok()) return false;
  const absl::StatusOr<std::string> event = json->Text("event", kMaxNameBytes);
  if (!event.ok()) return false;
  if (*event == "start") {
    (void)NoteStart(launch, *json);
  } else if (*event == "row") {
    (void)NoteRow(launch, *json);
  } else if (*event == "limit") {
    (void)NoteLimit(launch, *json);
  } else if (*event == "progress") {
    done_ = json->WholeNumber<size_t>("done", 0, INT64_MAX).value_or(0);
    of_ = json->WholeNumber<size_t>("of", 0, INT64_MAX).value_or(0);
  }
  return true;
}

absl::Status BenchResult::NoteStart(const BenchLaunch& launch, const JsonObject& json) {
  std::vector<BenchRank>& ranks = ranks_[launch.workers];
  ranks.clear();
  if (json.Has("ranks")) {
    PSRING_ASSIGN_OR_RETURN(const std::vector<JsonObject> rows, json.Objects("ranks", kMaxRanks));
    for (const JsonObject& row : rows) {
      BenchRank rank;
      PSRING_ASSIGN_OR_RETURN(rank.host, row.Text("host", kMaxNameBytes, ""));
      PSRING_ASSIGN_OR_RETURN(rank.pid, row.WholeNumber("pid", 0, INT32_MAX, 0));
      PSRING_ASSIGN_OR_RETURN(rank.device, row.Text("device", kMaxNameBytes, "cpu"));
      ranks.push_back(std::move(rank));
    }
  }
  if (!json.Has("groups")) return absl::OkStatus();
  PSRING_ASSIGN_OR_RETURN(const std::vector<JsonObject> groups, json.Objects("groups", kMaxRanks));
  for (size_t i = 0; i < std::min(groups.size(), launch.combinations.size()); ++i) {
    BenchTable& table = tables_[launch.combinations[i]];
    PSRING_ASSIGN_OR_RETURN(table.algorithm, groups[i].Text("algorithm", kMaxNameBytes, table.algorithm));
    PSRING_ASSIGN_OR_RETURN(table.transport, groups[i].Text("transport", kMaxNameBytes, table.transport));
  }
  return absl::OkStatus();
}

absl::Status BenchResult::NoteRow(const BenchLaunch& launch, const JsonObject& json) {
  if (launch.combinations.empty()) return absl::OkStatus();
  PSRING_ASSIGN_OR_RETURN(const size_t i,
                          json.WholeNumber<size_t>("combination", 0, launch.combinations.size() - 1));
  PSRING_ASSIGN_OR_RETURN(const std::string type, json.Text("type", kMaxNameBytes));
  PSRING_ASSIGN_OR_RETURN(const std::string op, json.Text("op", kMaxNameBytes));
  PSRING_ASSIGN_OR_RETURN(const uint64_t bytes, json.WholeNumber<uint64_t>("bytes", 0, INT64_MAX));
  PSRING_ASSIGN_OR_RETURN(const uint64_t count, json.WholeNumber<uint64_t>("count", 0, INT64_MAX));
  PSRING_ASSIGN_OR_RETURN(const SampleFigures out_of_place, SamplesAt(json, "out_of_place"));
  PSRING_ASSIGN_OR_RETURN(const SampleFigures in_place, SamplesAt(json, "in_place"));
  BenchCell& cell = CellOf(tables_[launch.combinations[i]], type, op, bytes);
  cell.count = count;
  Add(out_of_place, cell.out_of_place);
  Add(in_place, cell.in_place);
  return absl::OkStatus();
}

absl::Status BenchResult::NoteLimit(const BenchLaunch& launch, const JsonObject& json) {
  PSRING_ASSIGN_OR_RETURN(const std::string kind, json.Text("kind", kMaxNameBytes));
  PSRING_ASSIGN_OR_RETURN(const std::string collective, json.Text("collective", kMaxNameBytes, ""));
  PSRING_ASSIGN_OR_RETURN(const uint64_t bytes, json.WholeNumber<uint64_t>("bytes", 0, INT64_MAX));
  PSRING_ASSIGN_OR_RETURN(const SampleFigures samples, SamplesFrom(json));
  limits_.Add(launch.workers, kind, collective, bytes, samples.times_us);
  return absl::OkStatus();
}

void BenchResult::NoteForeignCpu(const BenchLaunch& launch, double percent) {
  for (const size_t i : launch.combinations) tables_[i].foreign_cpu_pct.push_back(percent);
}

absl::Status BenchResult::RequireComplete() const {
  const size_t wanted = static_cast<size_t>(plan_.rounds) * static_cast<size_t>(plan_.iterations);
  for (const BenchTable& table : tables_) {
    const std::string name = table.combination.name();
    if (table.cells.empty()) return absl::DataLossError(absl::StrCat(name, ": received no samples"));
    for (const BenchCell& cell : table.cells) {
      const bool both = !table.combination.push_pull() && table.combination.collective != "all_to_all";
      if (cell.out_of_place.times_us.size() >= wanted && (!both || cell.in_place.times_us.size() >= wanted)) {
        continue;
      }
      return absl::DataLossError(absl::StrCat(name, ", ", cell.bytes, " bytes: received ",
                                              cell.out_of_place.times_us.size(), " of ", wanted, " samples"));
    }
  }
  return absl::OkStatus();
}

std::string BenchTable::AlgorithmOf(const BenchCell& cell) const {
  const absl::StatusOr<Collective> collective = ParseCollective(combination.collective);
  if (combination.backend != "native" || algorithm != kDefaultAlgorithm || !collective.ok()) return algorithm;
  return DefaultAlgorithm(*collective, cell.bytes, combination.workers, transport == "shm");
}

CollectiveRow BenchResult::RowOf(const BenchTable& table, const BenchCell& cell, int root) const {
  const BenchCombination& combination = table.combination;
  const bool reduces = combination.collective == kAllReduce || combination.collective == "reduce_scatter" ||
                       combination.push_pull();
  CollectiveRow row{.bytes = cell.bytes,
                    .count = cell.count,
                    .type = NcclTypeName(cell.type),
                    .op = reduces ? NcclOpName(cell.op) : "none",
                    .root = combination.collective == "broadcast" ? root : -1};
  const std::optional<double> limit = limits_.BusBandwidth(combination, table.transport, cell.bytes);
  for (const auto& [samples, figures] :
       {std::pair(&cell.out_of_place, &row.out_of_place), std::pair(&cell.in_place, &row.in_place)}) {
    figures->measured = !samples->times_us.empty();
    if (!figures->measured) continue;
    figures->time_us = samples->Median();
    figures->wrong = samples->wrong;
    SetBandwidths(combination.collective, combination.workers, cell.bytes, *figures);
    if (limit && *limit > 0) figures->percent_of_limit = 100 * figures->busbw / *limit;
  }
  return row;
}

absl::Status CheckBusbw(const BenchRequest& request, const BenchResult& result, const std::string& slowest) {
  if (request.require_busbw <= 0) return absl::OkStatus();
  const uint64_t bytes = std::ranges::max(result.plan().sizes);
  for (const auto& [workers, speeds] : AllReducesOf(result, bytes, request.root)) {
    const auto [least, most] = std::minmax_element(
        speeds.begin(), speeds.end(), [](const Speed& a, const Speed& b) { return a.busbw < b.busbw; });
    if (most->busbw >= request.require_busbw) continue;
    std::string what =
        absl::StrFormat("the bus bandwidth of the fastest all-reduce of %s is below --require_busbw %g (%s)",
                        ByteSizeText(bytes), request.require_busbw, Text(*most));
    if (!slowest.empty()) {
      absl::StrAppend(&what, "; ", slowest);
    } else if (speeds.size() > 1) {
      absl::StrAppend(&what, "; the slowest is ", Text(*least));
    }
    return absl::AbortedError(what);
  }
  return absl::OkStatus();
}

void MeasuredLimits::Add(int workers, const std::string& kind, const std::string& collective, uint64_t bytes,
                         const std::vector<double>& times_us) {
  std::vector<double>& all = times_us_[{workers, kind, collective, bytes}];
  all.insert(all.end(), times_us.begin(), times_us.end());
}

std::optional<double> MeasuredLimits::MedianUs(const Key& key) const {
  const auto found = times_us_.find(key);
  if (found == times_us_.end()) return std::nullopt;
  const double median = Quantile(found->second, 0.5);
  if (median <= 0) return std::nullopt;
  return median;
}

std::optional<double> MeasuredLimits::BusBandwidth(const BenchCombination& combination,
                                                   const std::string& transport, uint64_t bytes) const {
  if (combination.workers < 2 && !combination.push_pull()) return std::nullopt;
  const std::optional<double> median =
      MedianUs({combination.workers, LimitKindOf(combination, transport), combination.collective, bytes});
  if (!median) return std::nullopt;
  return BusFactor(combination.collective, combination.workers) * static_cast<double>(bytes) / *median / 1e3;
}

std::string MeasuredLimits::Text(int workers) const {
  std::set<std::pair<std::string, uint64_t>> rows, push_pulls;
  for (const auto& [key, times] : times_us_) {
    const auto& [its_workers, kind, collective, bytes] = key;
    if (its_workers != workers) continue;
    if (collective == kPushPull) push_pulls.insert({collective, bytes});
    if (collective != kPushPull && kind != "copy") rows.insert({collective, bytes});
  }
  std::string text;
  if (!rows.empty()) {
    text =
        absl::StrCat(Tr("# Limits of this host with $0 processes, GB/s. copy: all processes copy at the same "
                        "time.\n# shared, tcp, unix: busbw of the minimum work: adding directly from the "
                        "peers' memory (shared),\n# or sending the data once around a ring (tcp, unix).",
                        workers),
                     "\n",
                     absl::StrFormat("# %10s  %14s  %8s  %8s  %8s  %8s\n", "size", "collective", "copy",
                                     "shared", "tcp", "unix"));
  }
  for (const auto& [collective, bytes] : rows) {
    absl::StrAppendFormat(&text, "# %10d  %14s", bytes, collective);
    for (const char* kind : {"copy", "shared", "tcp", "unix"}) {
      // A copy has no bus factor.
      const double factor = std::string(kind) == "copy" ? 1 : BusFactor(collective, workers);
      const std::optional<double> median = MedianUs({workers, kind, collective, bytes});
      text += median ? absl::StrFormat("  %8.2f", factor * static_cast<double>(bytes) / *median / 1e3)
                     : absl::StrFormat("  %8s", "");
    }
    text += "\n";
  }
  if (!push_pulls.empty()) {
    absl::StrAppend(&text,
                    Tr("# Limits of a server's round with $0 workers, us. raw: the same bytes over plain TCP "
                       "sockets.\n# fused: one pass through memory that adds all gradients, updates the "
                       "weights and writes them\n# for every worker.",
                       workers),
                    "\n", absl::StrFormat("# %10s  %10s  %10s\n", "size", "raw", "fused"));
  }
  for (const auto& [collective, bytes] : push_pulls) {
    absl::StrAppendFormat(&text, "# %10d", bytes);
    for (const char* kind : {"raw", "fused"}) {
      const std::optional<double> median = MedianUs({workers, kind, kPushPull, bytes});
      text += median ? absl::StrFormat("  %10.1f", *median) : absl::StrFormat("  %10s", "");
    }
    text += "\n";
  }
  return text;
}

}  // namespace psring
