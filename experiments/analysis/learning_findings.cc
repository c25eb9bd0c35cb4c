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
    const auto [least, most] =
        std::minmax_element(configuration.tried_lrs.begin(), configuration.tried_lrs.end());
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
  std::string text = Tr("Test accuracy after $0 $3 over all workers, $1: $2.",
                        WithThousands(static_cast<double>(any.trained_samples)),
                        one ? Tr("one seed") : Tr("mean of $0 seeds", any.trainings),
                        absl::StrJoin(parts, Tr(", ")), UnitOf(any));
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

}  // namespace psring
