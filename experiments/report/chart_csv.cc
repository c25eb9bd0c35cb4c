#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "experiments/report/chart_svg.h"

namespace psring {

std::string ChartCsv(const Chart& chart) {
  const auto line = [](const std::vector<std::string>& cells) {
    return absl::StrCat(
        absl::StrJoin(
            cells, ",",
            [](std::string* out, const std::string& cell) {
              const bool quoted = cell.find_first_of(",\"\r\n") != std::string::npos;
              absl::StrAppend(
                  out, quoted ? absl::StrCat("\"", absl::StrReplaceAll(cell, {{"\"", "\"\""}}), "\"") : cell);
            }),
        "\n");
  };
  std::string text = line(chart.columns);
  for (const auto& row : chart.rows) text += line(row);
  return text;
}

}  // namespace psring
