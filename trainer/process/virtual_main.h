// A trainer process that represents all workers: simulated time, and replays of runs.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/options/training_options.h"

namespace psring {

struct VirtualFlags {
  TrainingOptions training;
  int workers = 1;
  std::string record;    // folder; empty: none
  std::string progress;  // the kind for MakeProgress
};

// --clock virtual: writes the records of all ranks and of the server.
absl::Status TrainVirtually(const VirtualFlags& flags);

// --replay FILE: prints {"weights_hash": ..., "updates": ...} as the last line on stdout.
absl::Status ReplayFile(const VirtualFlags& flags, const std::string& file);

}  // namespace psring
