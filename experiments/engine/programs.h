// The programs that psring starts, and what they say about themselves and about their input.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "experiments/design/plan.h"
#include "experiments/launch/interrupt.h"
#include "experiments/launch/training_job.h"

namespace psring {

// The programs in psring's own folder. NotFound: one is missing.
absl::StatusOr<Binaries> FindBinaries();       // of a training
absl::StatusOr<Binaries> FindBenchBinaries();  // of a benchmark

// The output of `program --describe`.
absl::StatusOr<std::string> Described(const std::string& program, const Interrupt& interrupt);

// Makes the trainer load the data and build the model without training. Errors in the input are the trainer's
// message. `workers`: above 0, also checks the memory of so many on this host.
absl::StatusOr<Probe> CheckWithTrainer(const Binaries& binaries, const TrainingOptions& training,
                                       const Interrupt& interrupt, int workers = 0);

}  // namespace psring
