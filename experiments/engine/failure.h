// How a verb reports that it failed.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "experiments/processes/progress.h"

namespace psring {

// `status`, which ended a verb; if a signal did before there was a run folder, it also says that nothing was
// kept.
absl::Status WithNothingKept(const absl::Status& status);

// Prints `status` as "psring VERB: ..." and returns the exit code: 2 for bad input, else 1.
int ReportFailure(const std::string& verb, const absl::Status& status, Display& display);

}  // namespace psring
