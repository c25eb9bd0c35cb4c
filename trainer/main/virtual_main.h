// A trainer process that represents all workers: simulated time, and replays of runs.
#pragma once

#include "absl/status/status.h"
#include "trainer/main/trainer_flags.h"

namespace psring {

// --clock virtual: writes the records of all ranks and of the server.
absl::Status TrainVirtually(const TrainerFlags& flags);

// --replay FILE: prints {"weights_hash": ..., "updates": ...} as the last line on stdout.
absl::Status ReplayFile(const TrainerFlags& flags);

}  // namespace psring
