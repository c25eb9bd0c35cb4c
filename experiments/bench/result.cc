#include "experiments/bench/result.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "experiments/stats/statistics.h"

namespace psring {
namespace {

using Json = nlohmann::json;

// Adds the samples of another round.
void Add(const Json& json, SampleFigures& figures) {
  if (!json.is_object()) return;
  for (const Json& time : json.value("times_us", Json::array())) {
    if (time.is_number()) figures.times_us.push_back(time.get<double>());
  }
  figures.calls_per_turn = json.value("calls_per_turn", int64_t{0});
  figures.wrong = std::max(figures.wrong, json.value("wrong", int64_t{-1}));
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
  std::sort(sorted.begin(), sorted.end());
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
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("event")) return false;
  const std::string event = json.value("event", "");
  if (event == "start") {
    std::vector<BenchRank>& ranks = ranks_[launch.workers];
    ranks.clear();
    for (const Json& rank : json.value("ranks", Json::array())) {
      ranks.push_back({rank.value("host", ""), rank.value("pid", 0), rank.value("device", "cpu")});
    }
    const Json groups = json.value("groups", Json::array());
    for (size_t i = 0; i < std::min(groups.size(), launch.combinations.size()); ++i) {
      BenchTable& table = tables_[launch.combinations[i]];
      table.algorithm = groups[i].value("algorithm", table.algorithm);
      table.transport = groups[i].value("transport", table.transport);
    }
  } else if (event == "row") {
    const size_t i = json.value("combination", size_t{0});
    if (i >= launch.combinations.size()) return true;
    BenchCell& cell = CellOf(tables_[launch.combinations[i]], json.value("type", ""), json.value("op", ""),
                             json.value("bytes", uint64_t{0}));
    cell.count = json.value("count", uint64_t{0});
    Add(json.value("out_of_place", Json()), cell.out_of_place);
    Add(json.value("in_place", Json()), cell.in_place);
  } else if (event == "limit") {
    SampleFigures figures;
    Add(json, figures);
    limits_.Add(launch.workers, json.value("kind", ""), json.value("collective", ""),
                json.value("bytes", uint64_t{0}), figures.times_us);
  } else if (event == "progress") {
    done_ = json.value("done", size_t{0});
    of_ = json.value("of", size_t{0});
  }
  return true;
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
      const bool both = !table.combination.push_pull();
      if (cell.out_of_place.times_us.size() >= wanted && (!both || cell.in_place.times_us.size() >= wanted)) {
        continue;
      }
      return absl::DataLossError(absl::StrCat(name, ", ", cell.bytes, " bytes: received ",
                                              cell.out_of_place.times_us.size(), " of ", wanted, " samples"));
    }
  }
  return absl::OkStatus();
}

CollectiveRow BenchResult::RowOf(const BenchTable& table, const BenchCell& cell, int root) const {
  const BenchCombination& combination = table.combination;
  const bool reduces = combination.collective != "all_gather" && combination.collective != "broadcast";
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

}  // namespace psring
