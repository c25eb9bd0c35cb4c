// Times that are asked for rather than measured: random delays of steps, workers that are slower than others.
// The live trainer sleeps them and the virtual clock adds them up, so both see the same ones. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/command_line.h"

namespace psring {

// A time in ms, as a flag says it: "none", "6" (always), "exp:MEAN", "lognormal:MEDIAN:SIGMA" (SIGMA: of its
// logarithm).
struct TimeDistribution {
  enum class Kind { kConstant, kExponential, kLogNormal };
  Kind kind = Kind::kConstant;
  double scale_ms = 0;  // the value, the mean, the median
  double sigma = 0;

  bool is_zero() const { return scale_ms == 0; }
  double mean_ms() const;
};
// InvalidArgument: "'exp:x' is no time: ...".
absl::StatusOr<TimeDistribution> ParseTimeDistribution(const std::string& text);

// What a drawn time is for: distinct uses are independent.
enum class TimeUse : uint64_t { kJitter = 1, kCompute, kPush, kPull, kServe };

// The time of `worker`'s `step`: a function of the arguments alone, so that nothing depends on who draws
// first.
double DrawMs(const TimeDistribution& distribution, uint64_t seed, TimeUse use, int worker, int64_t step);

// A worker whose computing takes `factor` times as long.
struct Straggler {
  int worker = 0;
  double factor = 1;
};
// "1:3,2:1.5", or "none". InvalidArgument: what is no such list, a factor below 1, a worker named twice.
absl::StatusOr<std::vector<Straggler>> ParseStragglers(const std::string& text);
// 1 where `worker` is none of them.
double SlownessOf(const std::vector<Straggler>& stragglers, int worker);

// InvalidArgument where one of them is not among workers 0 to `workers` - 1: it would be forgotten silently.
absl::Status CheckStragglers(const std::string& text, int workers);

// Where a virtual clock takes times from: a distribution, or "trace:FILE", times that were measured (a run's
// folder, or the file that psring makes of it).
inline constexpr const char* kTracePrefix = "trace:";

// For CLI11.
ValueCheck TimeDistributionText();
ValueCheck StragglersText();
ValueCheck VirtualTimeText();  // also a trace

}  // namespace psring
