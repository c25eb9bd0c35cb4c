// psring doctor: what this machine has, with a fix for each problem.
#pragma once

#include "experiments/processes/interrupt.h"
#include "experiments/texts/phrase.h"

namespace psring {

// Prints a line for each part: "yes", "no" or "NO" (required), with the fix below a no. Returns 0 unless
// something required is missing.
int RunDoctor(const Interrupt& interrupt, Language language);

}  // namespace psring
