// psring predict --calibrate: fits the model to the measured steps of a run, or to the exchanges of a
// benchmark. The largest number of workers is withheld from the fit, to check it. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/verbs/predict/fit.h"

namespace psring {

// A row of summary.csv, or one exchange of a benchmark, without computing.
struct RunStep {
  std::string strategy, placement;
  int workers = 0, servers = 0;
  double step_s = 0, compute_s = 0, bytes = 0, bucket_mb = 0, link_bytes_per_s = 0;
  int batch = 0;
  bool exchange_only = false;
  int per_node = 1;     // with exchange_only: workers of each machine
  bool is_cut = false;  // of a pipeline, which the model of one exchange does not describe
};

// From the text of a summary.csv: rows with a measured step; of those that say on which wire their servers'
// payload travelled, those over `server_wire`. InvalidArgument: a column is missing, or there is no such row.
absl::StatusOr<std::vector<RunStep>> ParseRunSteps(const std::string& csv,
                                                   const std::string& server_wire = "grpc");

// From the text of the bench.json of several machines: native all-reduces over TCP, and rounds of one
// parameter server (ps-sync) over `server_wire`. InvalidArgument: it is of one machine, or has no such row.
absl::StatusOr<std::vector<RunStep>> ParseBenchSteps(const std::string& json,
                                                     const std::string& server_wire = "grpc");

struct CalibrateInputs {
  std::vector<RunStep> steps;
  std::optional<Workload> workload;  // default: gradients ready evenly over backward, 2/3 of computing
  Cluster cluster;                   // link rate 0: taken from the run's rows
  PredictOptions options;            // from the flags; buckets and placement come from the rows
  std::vector<std::string> fitted;   // constants, at most two; empty: those of the family
  std::vector<StrategyRow> strategies;
};

// The table with the errors of the withheld rows, the flags that set the constants, and how many rows of
// pipelines were not used. InvalidArgument: no strategy was run with two numbers of workers above 1, or the
// link rate is missing.
absl::StatusOr<std::string> CalibrationText(const CalibrateInputs& inputs);

}  // namespace psring
