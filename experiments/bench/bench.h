// psring bench: collectives of every backend, compared with each other and with the machine's limits.
#pragma once

#include "experiments/bench/flags.h"
#include "experiments/processes/interrupt.h"
#include "experiments/processes/progress.h"

namespace psring {

// Returns the process's exit code: 0, 2 for bad input (nothing has been started then), 1 for a failure (no
// figure has been printed then).
int RunBench(const BenchFlags& flags, const Interrupt& interrupt, Display& display);

}  // namespace psring
