#include "experiments/bench/requirement.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/units.h"
#include "common/measure/collective_table.h"

namespace psring {
namespace {

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

}  // namespace

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

}  // namespace psring
