#include "experiments/compare/waiting_findings.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "experiments/compare/table.h"

namespace psring {
namespace {

bool Communicates(const SummaryRow& row) {
  return row.configuration.strategy.needs != StrategyNeeds::kNothing;
}

// Everybody waits for everybody.
bool WaitsForAll(const SummaryRow& row) {
  return Communicates(row) && row.configuration.strategy.synchronous &&
         row.configuration.strategy.number == 0;
}

// The range of a figure over workers: "2.1 to 2.4", or "9.0".
std::string Range(std::vector<double> values, const char* format) {
  std::sort(values.begin(), values.end());
  const auto text = [format](double value) {
    return absl::StrFormat(*absl::ParsedFormat<'f'>::New(format), value);
  };
  const std::string low = text(values.front()), high = text(values.back());
  return low == high ? low : absl::StrCat(low, " to ", high);
}

// "ring x 4: 7,012 samples/s; its workers waited 61% of the time (1% to 68%)".
std::string Waited(const SummaryRow& row) {
  std::vector<double> shares;
  for (const WorkerFigures& worker : row.mean.workers) {
    if (worker.step_ms > 0) shares.push_back(100 * worker.wait_ms / worker.step_ms);
  }
  std::string text =
      absl::StrCat(row.configuration.strategy.name, " ", WithThousands(row.mean.samples_per_s), " samples/s");
  if (shares.empty()) return text;
  return absl::StrCat(text, ", a worker waiting ", Range(shares, "%.0f"), "% of its time for others");
}

std::string Late(const SummaryRow& row) {
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
  const bool all = ranks.back() + 1 == static_cast<int>(ranks.size());  // or some were lost
  return absl::StrFormat("%s: %.2f on average; workers %s: %s%s", row.configuration.strategy.name,
                         row.mean.staleness_mean.value_or(0),
                         all ? absl::StrCat("0 to ", ranks.back()) : absl::StrJoin(ranks, ", "),
                         absl::StrJoin(workers, ", "),
                         rates ? " (in brackets: the others' rates over its own)" : "");
}

// Speed and accuracy of `row` against the best synchronous row.
std::string Against(const SummaryRow& row, const SummaryRow& reference) {
  std::string text = absl::StrFormat("%s %.2f times the samples/s of %s", row.configuration.strategy.name,
                                     row.mean.samples_per_s / reference.mean.samples_per_s,
                                     reference.configuration.strategy.name);
  if (row.test_accuracy && reference.test_accuracy) {
    absl::StrAppendFormat(&text, ", test accuracy %.4f against %.4f", *row.test_accuracy,
                          *reference.test_accuracy);
  }
  if (row.mean.dropped_share) {
    absl::StrAppendFormat(&text, ", %.0f%% of the gradients computed for nothing",
                          100 * *row.mean.dropped_share);
  }
  return text;
}

}  // namespace

std::vector<std::string> WaitingFindings(const std::vector<SummaryRow>& rows) {
  std::vector<std::string> findings;
  std::set<int> counts;
  std::string disturbances;
  for (const SummaryRow& row : rows) {
    const std::string text = DescribeDisturbances(row.configuration.training);
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
      waited.push_back(Waited(row));
      if (best == nullptr || row.mean.samples_per_s > best->mean.samples_per_s) best = &row;
    }
    for (const SummaryRow& row : rows) {
      if (row.configuration.workers != count || !Communicates(row) || WaitsForAll(row)) continue;
      if (!row.configuration.strategy.synchronous) late.push_back(Late(row));
      if (best != nullptr) gains.push_back(Against(row, *best));
    }
    if (!waited.empty()) {
      findings.push_back(absl::StrCat("What synchrony costs with ", count, " workers, where ", disturbances,
                                      ": ", absl::StrJoin(waited, "; "),
                                      none == nullptr ? ""
                                                      : absl::StrCat("; without any communication they make ",
                                                                     WithThousands(none->mean.samples_per_s)),
                                      ". Every step lasts as long as its slowest worker."));
    }
    std::erase(late, "");
    if (!late.empty() || !gains.empty()) {
      findings.push_back(absl::StrCat(
          "What not waiting gains and costs with ", count, " workers: ", absl::StrJoin(gains, "; "),
          gains.empty() ? "" : ". ",
          late.empty()
              ? ""
              : absl::StrCat("Gradients are late by so many updates: ", absl::StrJoin(late, "; "), ".")));
    }
  }
  return findings;
}

}  // namespace psring
