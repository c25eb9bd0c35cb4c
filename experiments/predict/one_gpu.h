// `psring compare` on a machine with one GPU: what can be measured there is, `single` and `none`, and what
// more GPUs would come to is simulated from the times of its layers.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/workloads/workload.h"
#include "experiments/compare/compare.h"
#include "experiments/processes/interrupt.h"
#include "experiments/processes/progress.h"
#include "experiments/summary/launch_figures.h"

namespace psring {

// What the one process of `records` did, for a predictor: each of its buckets is a tensor, ready when it was
// in a mean measured step. NotFound where there is no measured step. Pure.
absl::StatusOr<Workload> WorkloadOf(const RunRecords& records, const Configuration& configuration);

// As common/workloads/workload.h reads it.
std::string WorkloadCsv(const Workload& workload);

// Measures `single` and `none` with one worker, leaves `single`'s layers in workload.csv in the run's folder,
// and predicts the other strategies of `flags` with its numbers of workers above 1 (where none were asked
// for: 2, 4 and 8), in the folder `predicted` of the run's. Returns the exit code.
int CompareOnOneGpu(const ExperimentFlags& flags, bool workers_given, const Interrupt& interrupt,
                    Display& display);

}  // namespace psring
