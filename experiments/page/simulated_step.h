// The step of a pipeline that a trace shows, as it would be if each action took the median time of its kind
// in the run. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/programs/walk_program.h"

namespace psring {

// An action of the trace of a rank of the job.
struct TracedAction {
  int64_t rank = 0, step = 0;
  TimedAction timed;
};

struct SimulatedSpan {
  int64_t rank = 0;  // of the job
  std::string kind;  // "forward", "backward", "message", "bubble", as in the trace
  std::string action;
  NodeTime time;  // from the step's begin
};
struct SimulatedStep {
  std::vector<SimulatedSpan> spans;  // of the replica of the lowest ranks
  int64_t end_ns = 0;
  double bubble_ns = 0;  // mean over ranks
};

// The program is the order of the actions of whole stages in `step`; `actions` are untrusted, in any order,
// and may be of several steps and replicas. Nothing if they are no complete program of at least two ranks.
// `copy_streams`: see WalkStages; `tied_every`: see TiedEvery.
std::optional<SimulatedStep> SimulateStep(const std::vector<TracedAction>& actions, int64_t step,
                                          int copy_streams = 2, int tied_every = 0);

}  // namespace psring
