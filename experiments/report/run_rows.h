// A run's data as the charts need it: rows of its summary, lines of its files. Folders are other people's:
// nothing here throws, whatever the JSON holds. Pure.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "experiments/report/run_data.h"

namespace psring {

using ChartJson = nlohmann::ordered_json;

// A member; null where there is none, of that kind.
const ChartJson& MemberOf(const ChartJson& json, const std::string& key);
std::optional<double> NumberOf(const ChartJson& json, const std::string& key);
std::string TextOf(const ChartJson& json, const std::string& key);
// A figure as it stands in the folder.
std::string CellText(const ChartJson& value);

// A line of a CSV by its header.
using CsvRow = std::map<std::string, std::string>;
std::vector<CsvRow> ParseCsv(const std::string& text);
std::optional<double> NumberOf(const CsvRow& row, const std::string& key);
std::string TextOf(const CsvRow& row, const std::string& key);

// A row of the summary; points into its run's JSON.
struct ChartRow {
  const ChartJson* figures = nullptr;
  const ChartJson* all = nullptr;  // beside the figures: rounds, basis
  std::string name;                // the strategy, with what else tells it from others
  int workers = 0;
  bool simulated = false, crowded = false;

  std::string plain() const { return TextOf(*figures, "strategy"); }
  std::optional<double> number(const std::string& key) const { return NumberOf(*figures, key); }
  // Its 95% interval over repeats, from samples_per_s_lo95 and the like, or from "intervals".
  std::optional<std::pair<double, double>> interval(const std::string& key) const;
  std::string label() const { return absl::StrCat(name, " × ", workers); }
};

struct ChartRun {
  std::shared_ptr<const ChartJson> parsed;
  std::string id;
  std::vector<ChartRow> rows;
  std::vector<CsvRow> repeats;
  const ChartJson& json() const { return *parsed; }
  bool alone = true;  // no other run's charts stand beside it

  // "Run X. 5 repeats of 30 steps. Intervals: ..."
  std::string Caption(bool intervals) const;
  // A chart's id; where several runs are shown it begins with the run's.
  std::string IdOf(const std::string& chart) const;
};

ChartRun ParseRun(const RunData& data);

}  // namespace psring
