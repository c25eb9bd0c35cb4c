// The check of the model against published systems: each is predicted from the constants of all others
// (leave one system out), as if it were unknown. Pure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/layouts/published_layouts.h"
#include "experiments/stats/statistics.h"
#include "experiments/verbs/predict/causes.h"
#include "experiments/verbs/predict/published_systems.h"

namespace psring {

// The rows to fit: all but the first of each model, and every exchange. `size` is the number of GPUs.
absl::StatusOr<std::vector<FitRow>> RowsOf(const PublishedSystem& system);

struct LeftOutRow {
  std::string label;
  double measured = 0, predicted = 0;  // seconds of a step
  std::vector<double> logs;            // of the guesses' speeds, for RatiosOf
  size_t differences = 0;              // their number
  double error() const { return predicted / measured - 1; }
  Interval Range(double model_factor = kModelFactor) const;  // of the prediction
  bool Holds(double model_factor = kModelFactor) const;
};

struct LeftOutSystem {
  const PublishedSystem* system = nullptr;
  Constants expected;  // of the other systems
  std::vector<LeftOutRow> rows;
};
absl::StatusOr<LeftOutSystem> LeaveOut(const PublishedSystem& system);

// By PublishedTrainings: FittedCauses, fitted once to LeastSeconds of their rows.
const std::vector<Constants>& FittedTrainings();
bool Gathers(const PublishedTraining& training);  // weights

// The rows of a training but the first, predicted from all others (CausesOfLayouts); its `system` is null.
// `walks`: predicted steps are walked, ranges still those of LeastSeconds.
absl::StatusOr<LeftOutSystem> LeaveOut(const PublishedTraining& training, bool walks);

// SmallestModelFactor of all trainings.
double LayoutModelFactor();

// Over all rows.
struct LeftOutSummary {
  size_t rows = 0;
  double median_error = 0, worst_error = 0;  // absolute
  double coverage = 0;                       // share of the rows in their ranges
  double median_width = 0;                   // upper over lower end
};
LeftOutSummary SummaryOf(const std::vector<LeftOutSystem>& systems, double model_factor = kModelFactor);

// The smallest model factor, in steps of 0.01, with which the ranges hold 9 of 10 rows, rounded down to whole
// rows; at most 2.
double SmallestModelFactor(const std::vector<LeftOutSystem>& systems);

// The tables of systems in experiments/results/published_runs.md.
std::string PublishedText(const std::vector<LeftOutSystem>& systems);
// Those of layouts; `trainings`: by PublishedTrainings.
std::string PublishedLayoutsText(const std::vector<LeftOutSystem>& trainings);

// All tables there: of systems and of layouts (published_layouts.h). `begin` is called before each system and
// the layouts; its error ends the check.
absl::StatusOr<std::string> CheckPublishedRuns(
    const std::function<absl::Status(const std::string& name)>& begin);

}  // namespace psring
