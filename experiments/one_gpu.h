// `psring compare` with one GPU: measures `single` and `none`, and simulates several GPUs from the measured
// layer times.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/workloads/workload.h"
#include "experiments/analysis/launch_figures.h"
#include "experiments/launch/interrupt.h"
#include "experiments/launch/progress.h"
#include "experiments/verbs/compare/compare.h"

namespace psring {

// The workload of the single process in `records`: each bucket is a tensor, ready at its mean time over the
// measured steps. NotFound: no measured steps. Pure.
absl::StatusOr<Workload> WorkloadOf(const RunRecords& records, const Configuration& configuration);

// In the format of common/workloads/workload.h.
std::string WorkloadCsv(const Workload& workload);

// Measures `single` and `none` with one worker, writes the layers of `single` to workload.csv in the run
// folder, and predicts the other strategies of `flags` for its worker counts above 1 (default: 2, 4 and 8).
// Predictions go to the subfolder `predicted`. Returns the exit code.
int CompareOnOneGpu(const ExperimentFlags& flags, bool workers_given, const Interrupt& interrupt,
                    Display& display);

}  // namespace psring
