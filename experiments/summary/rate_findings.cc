#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "experiments/summary/findings.h"
#include "experiments/texts/findings.h"

namespace psring {
namespace {

std::string Rate(double lr) { return absl::StrFormat("%g", lr); }

}  // namespace

std::vector<std::string> RateFindings(const std::vector<SummaryRow>& rows, Language language) {
  Sentences findings(language);
  std::vector<std::string> best, highest, lowest;
  for (const SummaryRow& row : rows) {
    const Configuration& configuration = row.configuration;
    // Without an accuracy, the row uses the rate picked for another worker count.
    if (configuration.tried_lrs.empty() || !row.test_accuracy) continue;
    const auto [least, most] =
        std::minmax_element(configuration.tried_lrs.begin(), configuration.tried_lrs.end());
    best.push_back(findings.Say(kBestRate, configuration.name(), Rate(configuration.update.lr),
                                absl::StrJoin(configuration.tried_lrs, ", ", [](std::string* out, double lr) {
                                  absl::StrAppend(out, Rate(lr));
                                })));
    if (configuration.update.lr == *most) highest.push_back(configuration.name());
    if (configuration.update.lr == *least) lowest.push_back(configuration.name());
  }
  if (best.empty()) return {};
  std::string text = findings.Say(kBestRates, findings.Joined(best, kSemicolon));
  if (!highest.empty()) text += findings.Say(kHighestRate, findings.Joined(highest));
  if (!lowest.empty()) text += findings.Say(kLowestRate, findings.Joined(lowest));
  return {text};
}

}  // namespace psring
