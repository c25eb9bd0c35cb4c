// How a step's computing time varies between machines and steps, and what this costs synchronous steps: they
// wait for the slowest of N machines, so their expected computing time is that of the maximum of N draws.
// Without waiting, a worker's steps take the mean. Pure.
//
// Sources: order statistics (David & Nagaraja 2003, 2.1: E max = integral of x d F(x)^N); its effect on
// synchronous SGD: Chen et al. 2016, "Revisiting Distributed Synchronous SGD".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/random.h"
#include "common/cli/delays.h"

namespace psring {

struct ComputeVariation {
  enum class Kind { kNone, kNormal, kLogNormal, kSamples };
  Kind kind = Kind::kNone;
  double cv = 0;                // coefficient of variation, for normal and log-normal
  std::vector<double> samples;  // ascending, mean 1

  bool any() const { return kind != Kind::kNone; }
  bool operator==(const ComputeVariation&) const = default;
};

// "none", "normal:CV", "lognormal:CV", or the path of a file with one measured time per line (any unit).
// InvalidArgument: anything else.
absl::StatusOr<ComputeVariation> ParseComputeVariation(const std::string& text);
// From measured times. InvalidArgument: fewer than 2 times, or a time that is not positive.
absl::StatusOr<ComputeVariation> VariationOfSamples(std::vector<double> times);

// Deliberate delays: the same times as in a live run (common/cli/delays.h).
struct Delays {
  std::vector<double> slowness;  // by worker: factor of its computing time; 1 if missing
  TimeDistribution jitter;       // before the computation of a step
  uint64_t seed = 0;

  bool any() const { return !slowness.empty() || !jitter.is_zero(); }
  double SlownessOf(int worker) const { return worker < slowness.size() ? slowness[worker] : 1; }
  double JitterSeconds(int worker, int64_t step) const {
    return jitter.is_zero() ? 0 : DrawMs(jitter, seed, TimeUse::kJitter, worker, step) / 1e3;
  }
};
// InvalidArgument: `straggler` or `jitter_ms` is not as the flags of that name.
absl::StatusOr<Delays> ParseDelays(const std::string& straggler, const std::string& jitter_ms, uint64_t seed,
                                   int workers);

// The expected maximum of `count` independent draws, in multiples of the mean; at least 1.
double ExpectedMaximum(const ComputeVariation& variation, int count);

// One draw, in multiples of the mean. `normal`: of the standard normal distribution; `uniform`: in (0, 1).
double Draw(const ComputeVariation& variation, double normal, double uniform);

// Unlike the distributions of <random>, gives the same values with every standard library.
class RandomDurations {
 public:
  explicit RandomDurations(uint64_t seed) : generator_(seed) {}

  double Exponential(double mean);
  // Mean 1, coefficient of variation `cv`.
  double LogNormal(double cv);
  double Varied(const ComputeVariation& variation);

 private:
  double Uniform();  // in (0, 1)
  double Normal();

  SplitMix64 generator_;
};

}  // namespace psring
