// The durations of the steps of a measured run, by worker: the input of a virtual clock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

// One worker's measured steps, in order, in ms; all three have the same size.
struct WorkerTimes {
  std::vector<double> compute_ms;  // forward and backward, without artificial delays
  std::vector<double> other_ms;    // between the end of the previous step and the gradient, besides computing
  std::vector<double>
      exchange_ms;  // from the moment the last worker was ready until the weights were in place

  size_t steps() const { return compute_ms.size(); }
};

struct StepTimes {
  std::vector<WorkerTimes> workers;  // at least one, with at least one step each
};

// As JSON. Reading: InvalidArgument names what is missing.
std::string ToJson(const StepTimes& times);
absl::StatusOr<StepTimes> StepTimesFromJson(const std::string& text);

// The element of `times` for `worker`'s `step`: its own if there is one, so that disturbances of several
// workers of one host stay simultaneous. Further steps repeat the measured ones without the first tenth, in
// which caches may have been cold. With more workers than were measured, measured workers are reused, each
// time with another offset.
struct MeasuredStep {
  size_t worker = 0;
  size_t step = 0;
};
MeasuredStep MeasuredStepFor(const StepTimes& times, int worker, int64_t step);

}  // namespace psring
