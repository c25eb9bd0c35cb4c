// psring explain 1f1b: a training-step program as a timeline, its bubble, and what is in flight.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "trainer/programs/program_rows.h"
#include "trainer/programs/walk_program.h"

namespace psring {

// Lines of at most 110 characters; without the timeline where it is wider, and without the table of more than
// kMaxPlayed ranks. Pure. Errors: those of FindStepProgram and MakeStepProgram. A program for one rank has
// one, whatever `ranks` is.
absl::StatusOr<std::string> ExplainProgram(const std::string& name, int ranks, int micro_batches,
                                           const ProgramTable& rows = ProgramRows());

// A line for a rank: `name`, padded, and for each ns of the walk a cell of `width` columns with what `cell`
// returns for the action of that time; "" is not drawn. Empty if none is.
std::string TimelineOf(const Walk& walk, int rank, const std::string& name, int width,
                       const std::function<std::string(const StepAction&)>& cell);

}  // namespace psring
