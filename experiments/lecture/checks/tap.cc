#include <algorithm>

#include "absl/strings/str_cat.h"
#include "experiments/lecture/checks/checks.h"

namespace psring {

bool AllPassed(const std::vector<TapPoint>& points) {
  return std::ranges::all_of(points, [](const TapPoint& point) { return point.failure.empty(); });
}

std::string TapText(const std::vector<TapPoint>& points) {
  std::string text = absl::StrCat("TAP version 13\n1..", points.size(), "\n");
  for (size_t i = 0; i < points.size(); ++i) {
    const auto& [name, failure, hint] = points[i];
    absl::StrAppend(&text, failure.empty() ? "ok " : "not ok ", i + 1, " - ",
                    failure.empty() ? name : failure, "\n");
    if (!hint.empty()) absl::StrAppend(&text, "# hint: ", hint, "\n");
  }
  return text;
}

}  // namespace psring
