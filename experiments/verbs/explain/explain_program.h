// psring explain 1f1b: a training-step program as a timeline, its bubble, and what is in flight.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "trainer/programs/program_rows.h"

namespace psring {

// Lines of at most 110 characters; without the timeline where it is wider, and without the table of more than
// kMaxPlayed ranks. Pure. Errors: those of FindStepProgram and MakeStepProgram. A program for one rank has
// one, whatever `ranks` is.
absl::StatusOr<std::string> ExplainProgram(const std::string& name, int ranks, int micro_batches,
                                           const ProgramTable& rows = ProgramRows());

}  // namespace psring
