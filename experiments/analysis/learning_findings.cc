#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/analysis/findings.h"
#include "experiments/analysis/row_queries.h"
#include "experiments/analysis/table.h"

namespace psring {
namespace {

std::string Rate(double lr) { return absl::StrFormat("%g", lr); }

// "ps-async x 4", for sentences about several worker counts that compare trainings.
std::string WithWorkers(const SummaryRow& row) {
  return ClassesOf(row).empty() ? row.configuration.name()
                                : absl::StrCat(RankedName(row), " x ", row.configuration.workers);
}

}  // namespace

std::vector<std::string> RateFindings(const std::vector<SummaryRow>& rows) {
  std::vector<std::string> findings;
  std::vector<std::string> best, highest, lowest;
  for (const SummaryRow& row : rows) {
    const Configuration& configuration = row.configuration;
    // Without an accuracy, the row uses the rate picked for another worker count.
    if (configuration.tried_lrs.empty() || !row.test_accuracy) continue;
    const auto [least, most] = std::ranges::minmax_element(configuration.tried_lrs);
    best.push_back(Tr("$0 $1 (of $2)", configuration.name(), Rate(configuration.update.lr),
                      absl::StrJoin(configuration.tried_lrs, ", ",
                                    [](std::string* out, double lr) { absl::StrAppend(out, Rate(lr)); })));
    if (configuration.update.lr == *most) highest.push_back(configuration.name());
    if (configuration.update.lr == *least) lowest.push_back(configuration.name());
  }
  if (best.empty()) return {};
  std::string text =
      Tr("Every row is compared at the best of the learning rates tried for it, by accuracy on held-out "
         "samples: $0.",
         absl::StrJoin(best, Tr("; ")));
  if (!highest.empty()) {
    text += Tr(" The best one is the highest tried for $0: a higher one may be better (--tune lr:1,2,4).",
               absl::StrJoin(highest, Tr(", ")));
  }
  if (!lowest.empty()) {
    text += Tr(" The best one is the lowest tried for $0: a lower one may be better (--tune lr:0.25,0.5,1).",
               absl::StrJoin(lowest, Tr(", ")));
  }
  return {text};
}

void AddAccuracy(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  std::vector<const SummaryRow*> trained;
  for (const SummaryRow& row : rows) {
    if (row.test_accuracy) trained.push_back(&row);
  }
  if (trained.empty()) return;
  const SummaryRow& any = *trained.back();
  const auto is_any = [&](auto is) { return std::ranges::any_of(trained, is); };
  const bool rules_differ = is_any([&](const SummaryRow* row) { return !SameUpdateRule(*row, any); });
  std::vector<std::string> parts;
  for (const SummaryRow* row : trained) {
    const std::string name = WithWorkers(*row);
    const StrategyUpdate& update = row->configuration.update;
    const std::string named = rules_differ ? Tr("$0 ($1, lr $2)", name, update.optimizer, update.lr) : name;
    parts.push_back(
        WithRange(absl::StrFormat("%s %.4f", named, *row->test_accuracy), row->test_accuracy_95, 4));
  }
  const bool one = any.trainings == 1;
  std::string text =
      Tr("Test accuracy after $0 $3 over all workers, $1: $2.", WithThousands(any.trained_samples),
         one ? Tr("one seed") : Tr("mean of $0 seeds", any.trainings), absl::StrJoin(parts, Tr(", ")),
         UnitOf(any));
  if (parts.size() > 1) {
    if (one) text += Tr(" A different seed changes these values.");
    if (rules_differ) text += Tr(" The strategies update the weights by different rules.");
    const bool fixed_batch = any.configuration.training.global_batch > 0;
    std::set<int> synchronous;  // their worker counts
    for (const SummaryRow* row : trained) {
      if (row->configuration.strategy.synchronous) synchronous.insert(row->configuration.workers);
    }
    if (synchronous.size() > 1) {
      text += Tr(
          fixed_batch
              ? TrNoop(" With a fixed global batch, synchronous strategies make the same updates with any "
                       "number of workers.")
              : TrNoop(" With more workers, synchronous strategies make fewer updates with larger batches."));
    }
    if (fixed_batch &&
        is_any([](const SummaryRow* row) { return !row->configuration.strategy.synchronous; })) {
      text += Tr(" Asynchronous strategies make more updates with smaller batches.");
    }
  }
  findings.push_back(text);
}

void AddTarget(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  std::vector<std::string> reached, missed;
  double target = 0;
  for (const SummaryRow& row : rows) {
    if (row.configuration.target_accuracy == 0 || !row.test_accuracy) continue;
    target = row.configuration.target_accuracy;
    if (!row.time_to_target_s) {
      missed.push_back(
          Tr("$0 ($1 of $2 trainings reached it)", WithWorkers(row), row.reached_target, row.trainings));
      continue;
    }
    reached.push_back(
        WithRange(Tr("$0 $1 s", WithWorkers(row), Fixed(*row.time_to_target_s)), row.time_to_target_95, 2));
  }
  if (target == 0) return;
  findings.push_back(
      Tr("Training time to a test accuracy of $0: $1$2. Accuracy is known only at evaluations, so a time is "
         "too long by at most the interval between two evaluations. Evaluation time is not included.",
         target, reached.empty() ? Tr("none") : absl::StrJoin(reached, Tr(", ")),
         missed.empty() ? "" : Tr("; not reached by $0", absl::StrJoin(missed, Tr(", ")))));
}

namespace {

bool WaitsForOthers(const SummaryRow& row) { return row.configuration.strategy.communicates(); }

bool WaitsForAll(const SummaryRow& row) {
  return WaitsForOthers(row) && row.configuration.strategy.synchronous &&
         !row.configuration.strategy.waits_for_some();
}

// The range of `values`: "2 to 4", or "9".
std::string Range(std::vector<double> values) {
  std::ranges::sort(values);
  const auto text = [](double value) { return Fixed(value, 0); };
  const std::string low = text(values.front()), high = text(values.back());
  return low == high ? low : Tr("$0 to $1", low, high);
}

// "ring 7,012 samples/s, each worker waits 1 to 68% of its time for others".
std::string Waited(const SummaryRow& row) {
  std::vector<double> shares;
  for (const WorkerFigures& worker : row.mean.workers) {
    if (worker.step_ms > 0) shares.push_back(100 * worker.wait_ms / worker.step_ms);
  }
  const std::string text =
      Tr("$0 $1 $2/s", row.configuration.strategy.name, WithThousands(row.mean.samples_per_s), UnitOf(row));
  return shares.empty()
             ? text
             : absl::StrCat(text, Tr(", each worker waits $0% of its time for others", Range(shares)));
}

// Speed and accuracy of `row` compared with the fastest synchronous row.
std::string Against(const SummaryRow& row, const SummaryRow& reference) {
  std::string text = Tr("$0 reaches $1 times the $3/s of $2", RankedName(row),
                        Fixed(row.mean.samples_per_s / reference.mean.samples_per_s),
                        reference.configuration.strategy.name, UnitOf(row));
  if (row.test_accuracy && reference.test_accuracy) {
    text +=
        Tr(", test accuracy $0 versus $1", Fixed(*row.test_accuracy, 4), Fixed(*reference.test_accuracy, 4));
    if (!SameUpdateRule(row, reference)) {
      const StrategyUpdate &ours = row.configuration.update, &theirs = reference.configuration.update;
      text += Tr(" (with $0, lr $1, versus $2, lr $3)", ours.optimizer, ours.lr, theirs.optimizer, theirs.lr);
    }
  }
  if (row.mean.dropped_share) {
    text += Tr(", $0% of the gradients dropped", Fixed(100 * *row.mean.dropped_share, 0));
  }
  return text;
}

}  // namespace

std::string StalenessByWorker(const SummaryRow& row) {
  constexpr size_t kFew = 8;
  std::vector<std::string> workers;
  std::vector<int> ranks;
  for (const WorkerFigures& worker : row.mean.workers) {
    if (!worker.staleness_mean) return "";
    if (workers.size() == kFew) continue;
    ranks.push_back(worker.rank);
    workers.push_back(worker.staleness_theory
                          ? absl::StrFormat("%.2f (%.2f)", *worker.staleness_mean, *worker.staleness_theory)
                          : Fixed(*worker.staleness_mean));
  }
  if (ranks.empty()) return "";
  const bool rates = row.mean.workers.front().staleness_theory.has_value();
  const bool all = ranks.back() + 1 == static_cast<int>(ranks.size());  // false: some were lost
  return absl::StrCat(Tr("$0: mean $1; by worker ($2): $3", row.configuration.strategy.name,
                         Fixed(row.mean.staleness_mean.value_or(0)),
                         all ? Tr("$0 to $1", 0, ranks.back()) : absl::StrJoin(ranks, Tr(", ")),
                         absl::StrJoin(workers, Tr(", "))),
                      rates ? Tr(" (in parentheses the theory: the sum of the other workers' rates divided "
                                 "by the worker's own rate)")
                            : "");
}

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
      if (row.configuration.workers != count || !WaitsForOthers(row) || WaitsForAll(row)) continue;
      if (!row.configuration.strategy.synchronous) late.push_back(StalenessByWorker(row));
      if (best != nullptr) gains.push_back(Against(row, *best));
    }
    if (!waited.empty()) {
      findings.push_back(
          Tr("Cost of synchrony with $0 workers ($1): $2$3. Every step takes as long as that of its slowest "
             "worker.",
             count, disturbances, absl::StrJoin(waited, Tr("; ")),
             none == nullptr ? ""
                             : Tr("; without communication $0 $1/s", WithThousands(none->mean.samples_per_s),
                                  UnitOf(*none))));
    }
    std::erase(late, "");
    if (!late.empty() || !gains.empty()) {
      const std::string gained = gains.empty() ? "" : absl::StrCat(absl::StrJoin(gains, Tr("; ")), Tr(". "));
      findings.push_back(
          Tr("Effect of not waiting for slow workers, with $0 workers: $1$2", count, gained,
             late.empty() ? ""
                          : Tr("Staleness of the gradients in updates: $0.", absl::StrJoin(late, Tr("; ")))));
    }
  }
  return findings;
}

}  // namespace psring
