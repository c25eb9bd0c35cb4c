#include "experiments/report/chart_data.h"

#include <cctype>

#include "absl/strings/str_cat.h"
#include "experiments/report/chart_parts.h"

namespace psring {

std::string FileName(const std::string& id) {
  std::string name = id;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '_') c = '-';
  }
  return name.starts_with('.') ? absl::StrCat("-", name) : name;
}

std::vector<Chart> ChartsOf(const std::vector<RunData>& data) {
  std::vector<ChartRun> runs;
  for (const RunData& one : data) {
    runs.push_back(ParseRun(one));
    runs.back().alone = data.size() == 1;
  }
  std::vector<Chart> charts;
  AddPooledCharts(runs, charts);
  for (const ChartRun& run : runs) {
    AddBarCharts(run, charts);
    AddFileCharts(run, charts);
  }
  return charts;
}

}  // namespace psring
