// psring doctor: lists what this machine has, with a fix for each problem.
#pragma once

#include "experiments/launch/interrupt.h"

namespace psring {

// Prints a line per component: "yes", "no" (optional) or "NO" (required), and below a no its fix. Returns the
// exit code: 1 if a required component is missing or the examination failed, else 0.
int RunDoctor(const Interrupt& interrupt);

}  // namespace psring
