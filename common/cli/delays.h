// Times that flags request: random delays of steps, workers that are slower than others. The live trainer
// sleeps for them and the virtual clock adds them up; both use the same values. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/cli/command_line.h"

namespace psring {

// A time in ms as flags express it: "none", "6" (constant), "exp:MEAN", "lognormal:MEDIAN:SIGMA" (SIGMA:
// standard deviation of the logarithm).
struct TimeDistribution {
  enum class Kind { kConstant, kExponential, kLogNormal };
  Kind kind = Kind::kConstant;
  double scale_ms = 0;  // the constant, the mean or the median
  double sigma = 0;

  bool is_zero() const { return scale_ms == 0; }
  double mean_ms() const;
};
// InvalidArgument: "'exp:x' is not a time: ...".
absl::StatusOr<TimeDistribution> ParseTimeDistribution(const std::string& text);

// The purpose of a drawn time: distinct purposes give independent times.
enum class TimeUse : uint64_t { kJitter = 1, kCompute, kPush, kPull, kServe };

// The time of `worker`'s `step`: a function of the arguments only, so the order of calls does not matter.
double DrawMs(const TimeDistribution& distribution, uint64_t seed, TimeUse use, int worker, int64_t step);

// A worker whose computation takes `factor` times as long.
struct Straggler {
  int worker = 0;
  double factor = 1;
};
// "1:3,2:1.5", or "none". InvalidArgument: malformed, a factor below 1, or a worker named twice.
absl::StatusOr<std::vector<Straggler>> ParseStragglers(const std::string& text);
// 1 if `worker` is not listed.
double SlownessOf(const std::vector<Straggler>& stragglers, int worker);

// InvalidArgument if one of them is not in 0 to `workers` - 1, where it would have no effect.
absl::Status CheckStragglers(const std::string& text, int workers);

// The times of a virtual clock: a distribution, or "trace:FILE" with measured times (a run's folder, or the
// file that psring makes of it).
inline constexpr const char* kTracePrefix = "trace:";

// For CLI11.
ValueCheck TimeDistributionText();
ValueCheck StragglersText();
ValueCheck VirtualTimeText();  // accepts a trace as well

}  // namespace psring
