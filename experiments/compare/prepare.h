// What compare and train check before any work, and what they know by then.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "experiments/compare/compare.h"
#include "experiments/compare/measured_run.h"
#include "experiments/compare/run_claim.h"
#include "experiments/compare/runner.h"
#include "experiments/host/machine.h"

namespace psring {

// Everything that is known before the plan is made.
struct Prepared {
  Binaries binaries;
  Catalog catalog;
  Machine machine;
  Probe probe;
  LinkOptions link;  // the flags', or none where that was given up
  Shaping shaping = Shaping::kNone;
  std::string why_no_link;
  std::string why_userspace;          // where namespaces were wanted and cannot be made
  Site site;                          // but for the virtual cluster, which is built later
  std::unique_ptr<RunClaim> claim;    // null: --dry_run
  std::vector<MeasuredRun> measured;  // those that --compute_ms and --network_ms name
};

// All checks of input, then a first look at the trainer's speed. InvalidArgument, NotFound and
// FailedPrecondition are the user's; nothing is left of the claim then.
absl::StatusOr<Prepared> Prepare(const ExperimentFlags& flags, const std::string& verb,
                                 const Interrupt& interrupt, Display& display);

// The run whose times `time` asks for, as "trace:RUN"; null: no run's.
const MeasuredRun* MeasuredIn(const Prepared& prepared, const std::string& time);
// Its times for `configuration`, of `computing` or of exchanges; `which` says whose they are.
absl::StatusOr<StepTimes> MeasuredTimes(const Prepared& prepared, const std::string& time, bool computing,
                                        const Configuration& configuration, std::string& which);

// Where --plan_of names a run: what `plan` has fitted becomes what that run did. Errors name the run.
absl::Status TakePlanOf(const ExperimentFlags& flags, Plan& plan);

// Whether the runs that --compute_ms and --network_ms name have times for all that is planned. Says in the
// plan's notes whose times are taken.
absl::Status CheckMeasured(const Prepared& prepared, Plan& plan);

}  // namespace psring
