// How long the steps of a measured run took, worker by worker: what a virtual clock makes its times of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

// One worker's measured steps, in order, in ms; equally many of each.
struct WorkerTimes {
  std::vector<double> compute_ms;   // forward and backward, without artificial delays
  std::vector<double> other_ms;     // between the end of the step before and the gradient, besides computing
  std::vector<double> exchange_ms;  // from when nobody was waited for any more until the weights were there

  size_t steps() const { return compute_ms.size(); }
};

struct StepTimes {
  std::vector<WorkerTimes> workers;  // one at least, with a step each at least
};

// As JSON. Reading: InvalidArgument says what is missing.
std::string ToJson(const StepTimes& times);
absl::StatusOr<StepTimes> StepTimesFromJson(const std::string& text);

// Which of `times` stands for `worker`'s `step`: its own where there is one, so that what workers of one host
// suffered together they suffer together again. More steps go on after the first tenth, which may have been
// slow because all was cold. More workers than were measured take turns, there too, each from another place.
struct MeasuredStep {
  size_t worker = 0;
  size_t step = 0;
};
MeasuredStep MeasuredStepFor(const StepTimes& times, int worker, int64_t step);

}  // namespace psring
