// Programs for tests.
#pragma once

#include <string>

#include "trainer/programs/lower_program.h"
#include "trainer/programs/program_rows.h"
#include "trainer/programs/walk_program.h"

namespace psring {

// One unit and one bucket per stage.
inline StepProgram LowerWholeStages(const StepProgram& compute, const LowerOptions& options = {}) {
  return LowerProgram(compute, ModelCut::WholeStages(compute.stages()), options).value();
}
inline StepProgram Lowered(const std::string& name, int ranks, int micro_batches,
                           const LowerOptions& options = {}) {
  return LowerWholeStages(MakeStepProgram(*FindStepProgram(name), ranks, micro_batches).value(), options);
}

// Times in ms of all stages of a rank together.
struct StageTimes {
  double forward = 1, input = forward, weight = forward, message = 0;
};

inline Walk Timed(const StepProgram& compute, const StageTimes& times, const LowerOptions& options = {}) {
  const double chunks = static_cast<double>(compute.stages()) / compute.ranks;
  GivenDurations durations([&](int, const StepAction& action) {
    const auto ns = [](double ms) { return static_cast<int64_t>(ms * 1e6); };
    switch (action.kind) {
      case StepKind::kForward:
        return ns(times.forward / chunks);
      case StepKind::kBackward:
        return ns((times.input + times.weight) / chunks);
      case StepKind::kBackwardInput:
        return ns(times.input / chunks);
      case StepKind::kBackwardWeight:
        return ns(times.weight / chunks);
      case StepKind::kSendActivation:
      case StepKind::kSendGradient:
        return ns(times.message);
      default:
        return int64_t{0};
    }
  });
  return WalkProgram(LowerWholeStages(compute, options), &durations).value();
}

}  // namespace psring
