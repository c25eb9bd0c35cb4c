#include <cmath>
#include <numeric>

#include "absl/strings/str_format.h"
#include "experiments/plan/estimate.h"
#include "experiments/summary/findings.h"
#include "experiments/texts/findings.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {
namespace {

constexpr double kLeastDifference = 0.05;

std::string MsText(double seconds) { return absl::StrFormat("%.*f", seconds < .1 ? 1 : 0, 1e3 * seconds); }

bool Differ(double seconds, double law) { return std::abs(seconds - law) > kLeastDifference * law; }

}  // namespace

std::vector<std::string> BucketFindings(const std::vector<SummaryRow>& rows,
                                        const std::optional<Wires>& wires, Language language) {
  if (!wires) return {};
  Sentences findings(language);
  const Wires transfers{.bytes_per_s = wires->bytes_per_s, .medium_bytes_per_s = wires->medium_bytes_per_s};
  std::vector<std::string> few, other;
  for (const SummaryRow& row : rows) {
    if (!row.predicted_comm_ms || row.configuration.workers < 2) continue;
    if (row.configuration.model.has_tables) continue;  // the law is about gradients without rows
    if (SchemeOf(row.configuration.strategy) != Scheme::kServerSync) continue;
    const CommPattern pattern = PatternOf(row.configuration, Scheme::kServerSync);
    std::vector<double> buckets;
    for (const int64_t elements : row.sample.bucket_elements) {
      buckets.push_back(ExchangeBytes(row.configuration, elements));
    }
    const double bytes = std::accumulate(buckets.begin(), buckets.end(), 0.0);
    const double law = ExchangeSeconds(pattern, bytes, *wires);
    const double theory = ExchangeSeconds(pattern, buckets, WiresOf(row, *wires));
    if (!Differ(theory, law)) continue;
    const bool by_buckets =
        Differ(ExchangeSeconds(pattern, buckets, transfers), ExchangeSeconds(pattern, bytes, transfers));
    (by_buckets ? few : other)
        .push_back(findings.Say(kNotTheLaw, row.configuration.strategy.name, row.configuration.workers,
                                MsText(theory), MsText(law)));
  }
  if (!few.empty()) findings.Add(kFewBuckets, findings.Joined(few, kSemicolon));
  if (!other.empty()) findings.Add(kBeyondTheLaw, findings.Joined(other, kSemicolon));
  return findings.list();
}

}  // namespace psring
