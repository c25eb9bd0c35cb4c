// The checks of compare and train before any work, and what they find out.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "experiments/compare/compare.h"
#include "experiments/compare/runner.h"
#include "experiments/host/machine.h"
#include "experiments/runs/measured_run.h"
#include "experiments/runs/run_claim.h"
#include "experiments/virtual_cluster/preflight.h"

namespace psring {

// Everything that is known before the plan is made.
struct Prepared {
  int64_t begin_ns = 0;  // when preparation began
  Binaries binaries;
  Catalog catalog;
  Machine machine;
  Probe probe;
  LinkOptions link;  // of the virtual cluster; none if a default one is not possible
  Shaping shaping = Shaping::kNone;
  CarriedCluster virtual_cluster;     // empty: none
  Site site;                          // `cluster` is set by Experiment
  std::unique_ptr<RunClaim> claim;    // null: --dry_run
  std::vector<MeasuredRun> measured;  // those that --compute_ms and --network_ms name
};

// Checks all input, builds and measures the virtual cluster, and measures the trainer's speed.
// InvalidArgument, NotFound and FailedPrecondition are errors of the input; nothing remains written then.
absl::StatusOr<Prepared> Prepare(const ExperimentFlags& flags, const std::string& verb,
                                 const Interrupt& interrupt, Display& display);

// The run that `time` ("trace:RUN") names; null: none.
const MeasuredRun* MeasuredIn(const Prepared& prepared, const std::string& time);
// Its times for `configuration`, of computing or of exchanges; `which`: the configuration they come from.
absl::StatusOr<StepTimes> MeasuredTimes(const Prepared& prepared, const std::string& time, bool computing,
                                        const Configuration& configuration, std::string& which);

// --plan_of: replaces what `plan` has fitted by the values of that run. Errors name the run.
absl::Status TakePlanOf(const ExperimentFlags& flags, Plan& plan);

// Checks that the runs named by --compute_ms and --network_ms have times for every configuration. Adds notes
// that say which configuration's times are used.
absl::Status CheckMeasured(const Prepared& prepared, Plan& plan);

}  // namespace psring
