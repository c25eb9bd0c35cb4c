// psring replay: repeats an asynchronous run from its recorded order of arrivals and compares the weights.
#pragma once

#include <string>

#include "experiments/processes/interrupt.h"
#include "experiments/processes/progress.h"

namespace psring {

// `run`: a run's folder, or one of its record folders. Every live asynchronous launch in it is replayed.
// Returns the exit code: 0 where all weights are the same, 1 where some differ, 2 where there is nothing that
// can be replayed.
int RunReplay(const std::string& run, const Interrupt& interrupt, Display& display);

}  // namespace psring
