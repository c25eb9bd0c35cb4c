// Checks the calibrated model against the published systems: constants are fitted without the largest run of
// each model, which is then predicted. (Leave-one-out would not test extrapolation.) Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/predict/published_systems.h"

namespace psring {

struct CheckedRow {
  std::string label;
  double published = 0, predicted = 0;  // seconds of a step, fitted without the withheld rows
  bool withheld = false;                // the largest run of its model
  double error() const { return predicted / published - 1; }
};

struct CheckedSystem {
  const PublishedSystem* system = nullptr;
  std::vector<CheckedRow> rows;
  Constants without, all;  // fitted without the withheld rows; over all rows
};

absl::StatusOr<CheckedSystem> CheckSystem(const PublishedSystem& system);

// The factor, at least 1, within which `share` (0 to 1) of the withheld rows are predicted, up or down.
double FactorOf(const std::vector<CheckedSystem>& systems, double share);

// The tables of experiments/results/published_runs.md.
std::string PublishedText(const std::vector<CheckedSystem>& systems);

}  // namespace psring
