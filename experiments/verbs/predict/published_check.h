// The check of the model against published systems: each is predicted from the constants of all others
// (leave one system out), as if it were unknown. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/stats/statistics.h"
#include "experiments/verbs/predict/published_systems.h"

namespace psring {

// The rows to fit: all but the first of each model. `size` is the number of GPUs.
absl::StatusOr<std::vector<FitRow>> RowsOf(const PublishedSystem& system);

struct LeftOutRow {
  std::string label;
  double measured = 0, predicted = 0;  // seconds of a step
  Interval range;                      // of the prediction
  double error() const { return predicted / measured - 1; }
  bool holds() const { return range.low <= measured && measured <= range.high; }
};

struct LeftOutSystem {
  const PublishedSystem* system = nullptr;
  Constants expected;  // of the other systems
  std::vector<LeftOutRow> rows;
};
absl::StatusOr<LeftOutSystem> LeaveOut(const PublishedSystem& system);

// Over all rows.
struct LeftOutSummary {
  size_t rows = 0;
  double median_error = 0, worst_error = 0;  // absolute
  double coverage = 0;                       // share of the rows in their ranges
  double median_width = 0;                   // upper over lower end
};
LeftOutSummary SummaryOf(const std::vector<LeftOutSystem>& systems);

// The tables of experiments/results/published_runs.md.
std::string PublishedText(const std::vector<LeftOutSystem>& systems);

}  // namespace psring
