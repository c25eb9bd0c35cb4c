// Finds checkpoints by the names that users give.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/options/training_options.h"

namespace psring {

// Replaces a run folder in --resume by the folder of its checkpoints, as the trainer expects. `latest`
// without --checkpoint_dir means runs/latest. NotFound: there are none; InvalidArgument: several trainings
// have some.
absl::Status ResolveResume(TrainingOptions& training);

// The training's newest checkpoint; empty if there is none.
std::string NewestCheckpoint(const TrainingOptions& training);

}  // namespace psring
