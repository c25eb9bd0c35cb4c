// How a verb reports that it failed.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "experiments/launch/progress.h"

namespace psring {

// Prints `status` as "psring VERB: ..." and returns the exit code: 2 for bad input, else 1.
int ReportFailure(const std::string& verb, const absl::Status& status, Display& display);

// The exit code of a verb that ended with `status`, an error of which it reports. `keeps_nothing`: if a
// signal ended it before there was a run folder, the report says that nothing was kept.
int EndOfVerb(const std::string& verb, const absl::Status& status, bool keeps_nothing, Display& display);

}  // namespace psring
