// psring compare --resume RUN: continues a comparison that ended before its plan did.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "experiments/design/launches.h"
#include "experiments/run_folder/recorded_run.h"
#include "experiments/verbs/compare/compare.h"
#include "experiments/verbs/compare/flags.h"
#include "experiments/verbs/compare/prepare.h"

namespace psring {

struct ResumedRun {
  RecordedRun recorded;
  RecordedPlan plan;
};
// NotFound, InvalidArgument: `folder` is not the run folder of a comparison, or the comparison is finished.
absl::StatusOr<ResumedRun> ReadResumedRun(const std::string& folder);

// The flags of the run `asked.resume`, with those of `asked` that may differ. InvalidArgument: another flag
// differs from the run's.
absl::StatusOr<ExperimentFlags> ResumedFlags(const RawExperimentFlags& asked,
                                             const std::vector<std::string>& command_line);

// Rounds may only be added by the same programs, with the same inputs, on the same machine.
// FailedPrecondition names the differences.
absl::Status CheckSameConditions(const ResumedRun& run, const ExperimentFlags& flags,
                                 const Prepared& prepared);

}  // namespace psring
