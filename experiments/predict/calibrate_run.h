// psring predict --calibrate: fits the model to measured steps of a user's run, and checks it on the largest
// number of workers, which is withheld from the fit. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/predict/fit.h"

namespace psring {

// A row of summary.csv.
struct RunStep {
  std::string strategy, placement;
  int workers = 0, servers = 0;
  double step_s = 0, compute_s = 0, bytes = 0, bucket_mb = 0, link_bytes_per_s = 0;
  int batch = 0;
  bool pipelined = true;
};

// From the text of a summary.csv: rows with a measured step. InvalidArgument: a column is missing, or there
// is no such row.
absl::StatusOr<std::vector<RunStep>> ParseRunSteps(const std::string& csv);

struct CalibrateInputs {
  std::vector<RunStep> steps;
  std::optional<Workload> workload;  // without it, gradients are ready evenly over backward, 2/3 of computing
  Cluster cluster;                   // its rate: 0 if the run's rows say it
  PredictOptions options;            // of the flags; buckets and placement are the rows'
  std::vector<std::string> fitted;   // at most two; empty: by family
  // The strategies by name.
  std::vector<StrategyInfo> strategies;
};

// The table, the errors of the withheld rows, and the flags that hold the constants. InvalidArgument: no
// strategy was run with two numbers of workers above 1.
absl::StatusOr<std::string> CalibrationText(const CalibrateInputs& inputs);

}  // namespace psring
