// psring train: one configuration, trained to its end.
#pragma once

#include "experiments/compare/compare.h"

namespace psring {

// As RunCompare. `flags.options` holds one strategy and one worker count. --repeats trains again with the
// next seed.
int RunTrain(const ExperimentFlags& flags, const Interrupt& interrupt, Display& display);

}  // namespace psring
