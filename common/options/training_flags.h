// Private to training_options.cc and training_flags.cc.
#pragma once

#include "absl/status/status.h"
#include "common/options/training_options.h"

namespace psring {

// Whether every field that was set has a value that its flag takes.
absl::Status CheckFlagValues(const TrainingOptions& options);

}  // namespace psring
