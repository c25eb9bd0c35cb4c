// Where the checkpoints of trainings are, as people name them to psring.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/options/training_options.h"

namespace psring {

// Turns --resume into what a trainer takes: a run's folder, or `latest` without --checkpoint_dir (then that
// is runs/latest), becomes the folder of its checkpoints. NotFound where there are none, InvalidArgument
// where several trainings of the run have some.
absl::Status ResolveResume(TrainingOptions& training);

// The newest that a training has kept; empty where there is none.
std::string NewestCheckpoint(const TrainingOptions& training);

}  // namespace psring
