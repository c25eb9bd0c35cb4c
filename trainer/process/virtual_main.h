// The trainer's process where it stands for all workers at once: simulated time, and runs made again.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/options/training_options.h"

namespace psring {

struct VirtualFlags {
  TrainingOptions training;
  int workers = 1;
  std::string record;    // folder; empty: none
  std::string progress;  // as MakeProgress has it
};

// --clock virtual: leaves the records of all ranks and of the server.
absl::Status TrainVirtually(const VirtualFlags& flags);

// --replay FILE: prints {"weights_hash": ..., "updates": ...} on stdout, last.
absl::Status ReplayFile(const VirtualFlags& flags, const std::string& file);

}  // namespace psring
