#include "common/measure/collective_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace psring {
namespace {

// As many decimals as fit into `width`.
std::string Fitted(double value, int width) {
  for (int digits = 2; digits >= 0; --digits) {
    std::string text = absl::StrFormat("%*.*f", width, digits, value);
    if (static_cast<int>(text.size()) <= width) return text;
  }
  return absl::StrFormat("%*.*e", width, width >= 7 ? 1 : 0, value);
}

std::string HalfText(absl::string_view time, absl::string_view algbw, absl::string_view busbw,
                     absl::string_view wrong) {
  return absl::StrFormat("  %7s  %6s  %6s  %6s", time, algbw, busbw, wrong);
}

std::string HalfOf(const PlacementFigures& figures) {
  if (!figures.measured) return HalfText("N/A", "N/A", "N/A", "N/A");
  return HalfText(Fitted(figures.time_us, 7), Fitted(figures.algbw, 6), Fitted(figures.busbw, 6),
                  figures.wrong < 0 ? "N/A" : absl::StrCat(figures.wrong));
}

std::string Percent(const PlacementFigures& figures) {
  return figures.measured && figures.percent_of_limit >= 0
             ? absl::StrFormat("  %6.1f", figures.percent_of_limit)
             : absl::StrFormat("  %6s", "N/A");
}

}  // namespace

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double BusFactor(const std::string& collective, int ranks) {
  const double n = ranks;
  if (collective == "all_reduce") return 2 * (n - 1) / n;
  if (collective == "reduce_scatter" || collective == "all_gather" || collective == "all_to_all") {
    return (n - 1) / n;
  }
  return 1;
}

void SetBandwidths(const std::string& collective, int ranks, uint64_t bytes, PlacementFigures& figures) {
  figures.algbw = figures.time_us > 0 ? static_cast<double>(bytes) / figures.time_us / 1e3 : 0;
  figures.busbw = figures.algbw * BusFactor(collective, ranks);
}

std::string CollectiveTableHeader(bool limits) {
  constexpr char kColumns[] = "# %10s  %12s  %8s  %6s  %6s";
  const std::string names = HalfText("time", "algbw", "busbw", "#wrong"),
                    units = HalfText("(us)", "(GB/s)", "(GB/s)", "");
  return absl::StrCat("#\n", absl::StrFormat(kColumns, "", "", "", "", ""),
                      "           out-of-place                       in-place          ",
                      limits ? "  % of limit" : "", "\n",
                      absl::StrFormat(kColumns, "size", "count", "type", "redop", "root"), names, names,
                      limits ? absl::StrFormat("  %6s  %6s", "oop", "ip") : "", "\n",
                      absl::StrFormat(kColumns, "(B)", "(elements)", "", "", ""), units, units,
                      limits ? absl::StrFormat("  %6s  %6s", "(%)", "(%)") : "", "\n");
}

std::string CollectiveTableLine(const CollectiveRow& row, bool limits) {
  return absl::StrCat(
      absl::StrFormat("%12d  %12d  %8s  %6s  %6d", row.bytes, row.count, row.type, row.op, row.root),
      HalfOf(row.out_of_place), HalfOf(row.in_place),
      limits ? Percent(row.out_of_place) + Percent(row.in_place) : "", "\n");
}

std::string CollectiveTableFooter(int64_t out_of_bounds, double average_busbw) {
  return absl::StrFormat("# %-20s : %d %s\n# %-20s : %g \n#\n", "Out of bounds values", out_of_bounds,
                         out_of_bounds == 0 ? "OK" : "FAILED", "Avg bus bandwidth", average_busbw);
}

std::string NcclTypeName(const std::string& type) {
  if (type == "float32") return "float";
  if (type == "float16") return "half";
  return type;
}

std::string NcclOpName(const std::string& op) { return op == "mean" ? "avg" : op; }

}  // namespace psring
