// Part of WalkProgram: that a program's actions are complete and in an order that gives a step's result.
#pragma once

#include "absl/status/status.h"
#include "trainer/programs/walk_program.h"

namespace psring {

// Sets `walk`'s peaks. The errors are those of WalkProgram, except for cycles.
absl::Status CheckProgram(const StepProgram& program, Walk& walk);

// "rank 1: 1B0 ...": an error about an action.
absl::Status ActionError(int rank, const StepAction& action, const std::string& what);

}  // namespace psring
