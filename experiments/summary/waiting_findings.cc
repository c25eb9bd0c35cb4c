#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "experiments/summary/findings.h"
#include "experiments/summary/row_queries.h"
#include "experiments/summary/table.h"
#include "experiments/texts/findings.h"
#include "experiments/texts/waiting.h"

namespace psring {
namespace {

bool WaitsForOthers(const SummaryRow& row) { return row.configuration.strategy.communicates(); }

bool WaitsForAll(const SummaryRow& row) {
  return WaitsForOthers(row) && row.configuration.strategy.synchronous &&
         row.configuration.strategy.number == 0;
}

// The range of `values`: "2 to 4", or "9".
std::string Range(std::vector<double> values, Language language) {
  std::sort(values.begin(), values.end());
  const auto text = [](double value) { return absl::StrFormat("%.0f", value); };
  const std::string low = text(values.front()), high = text(values.back());
  return low == high ? low : Say(language, kRange, low, high);
}

// "ring 7,012 samples/s, each worker waits 1 to 68% of its time for others".
std::string Waited(const SummaryRow& row, Language language) {
  std::vector<double> shares;
  for (const WorkerFigures& worker : row.mean.workers) {
    if (worker.step_ms > 0) shares.push_back(100 * worker.wait_ms / worker.step_ms);
  }
  const std::string text = Say(language, kSamplesPerSecond, row.configuration.strategy.name,
                               WithThousands(row.mean.samples_per_s), UnitOf(row, language));
  return shares.empty() ? text : absl::StrCat(text, Say(language, kWaitsShare, Range(shares, language)));
}

// Speed and accuracy of `row` compared with the fastest synchronous row.
std::string Against(const SummaryRow& row, const SummaryRow& reference, Language language) {
  std::string text = Say(language, kAgainst, RankedName(row, language),
                         absl::StrFormat("%.2f", row.mean.samples_per_s / reference.mean.samples_per_s),
                         reference.configuration.strategy.name, UnitOf(row, language));
  if (row.test_accuracy && reference.test_accuracy) {
    text += Say(language, kAgainstAccuracy, absl::StrFormat("%.4f", *row.test_accuracy),
                absl::StrFormat("%.4f", *reference.test_accuracy));
    if (!SameUpdateRule(row, reference)) {
      const StrategyUpdate &ours = row.configuration.update, &theirs = reference.configuration.update;
      text += Say(language, kAgainstRule, ours.optimizer, ours.lr, theirs.optimizer, theirs.lr);
    }
  }
  if (row.mean.dropped_share) {
    text += Say(language, kAgainstDropped, absl::StrFormat("%.0f", 100 * *row.mean.dropped_share));
  }
  return text;
}

}  // namespace

std::string StalenessByWorker(const SummaryRow& row, Language language) {
  constexpr size_t kFew = 8;
  std::vector<std::string> workers;
  std::vector<int> ranks;
  for (const WorkerFigures& worker : row.mean.workers) {
    if (!worker.staleness_mean) return "";
    if (workers.size() == kFew) continue;
    ranks.push_back(worker.rank);
    workers.push_back(worker.staleness_theory
                          ? absl::StrFormat("%.2f (%.2f)", *worker.staleness_mean, *worker.staleness_theory)
                          : absl::StrFormat("%.2f", *worker.staleness_mean));
  }
  if (ranks.empty()) return "";
  const bool rates = row.mean.workers.front().staleness_theory.has_value();
  const bool all = ranks.back() + 1 == static_cast<int>(ranks.size());  // false: some were lost
  return absl::StrCat(
      Say(language, kLate, row.configuration.strategy.name,
          absl::StrFormat("%.2f", row.mean.staleness_mean.value_or(0)),
          all ? Say(language, kRange, 0, ranks.back()) : Joined(language, ranks), Joined(language, workers)),
      rates ? In(language, kLateByRates) : "");
}

std::vector<std::string> WaitingFindings(const std::vector<SummaryRow>& rows, Language language) {
  Sentences findings(language);
  std::set<int> counts;
  std::string disturbances;
  for (const SummaryRow& row : rows) {
    const std::string text = DescribeDisturbances(row.configuration.training, language);
    if (text.empty() || row.configuration.workers < 2) continue;
    disturbances = text;
    counts.insert(row.configuration.workers);
  }
  for (const int count : counts) {
    const SummaryRow* none = nullptr;
    const SummaryRow* best = nullptr;  // of those that wait for all
    std::vector<std::string> waited, late, gains;
    for (const SummaryRow& row : rows) {
      if (row.configuration.workers != count) continue;
      if (row.configuration.strategy.name == "none") none = &row;
      if (!WaitsForAll(row)) continue;
      waited.push_back(Waited(row, language));
      if (best == nullptr || row.mean.samples_per_s > best->mean.samples_per_s) best = &row;
    }
    for (const SummaryRow& row : rows) {
      if (row.configuration.workers != count || !WaitsForOthers(row) || WaitsForAll(row)) continue;
      if (!row.configuration.strategy.synchronous) late.push_back(StalenessByWorker(row, language));
      if (best != nullptr) gains.push_back(Against(row, *best, language));
    }
    if (!waited.empty()) {
      findings.Add(kSynchronyCosts, count, disturbances, findings.Joined(waited, kSemicolon),
                   none == nullptr
                       ? ""
                       : findings.Say(kWithoutCommunication, WithThousands(none->mean.samples_per_s),
                                      UnitOf(*none, language)));
    }
    std::erase(late, "");
    if (!late.empty() || !gains.empty()) {
      const std::string gained =
          gains.empty() ? "" : absl::StrCat(findings.Joined(gains, kSemicolon), findings.Say(kSentenceEnd));
      findings.Add(kNotWaiting, count, gained,
                   late.empty() ? "" : findings.Say(kLateBy, findings.Joined(late, kSemicolon)));
    }
  }
  return findings.list();
}

}  // namespace psring
