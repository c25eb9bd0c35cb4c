// Random durations of a simulation. Pure.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/base/random.h"
#include "experiments/simulator/compute_variation.h"

namespace psring {

// Unlike the distributions of <random>, gives the same values with every standard library.
class RandomDurations {
 public:
  explicit RandomDurations(uint64_t seed) : generator_(seed) {}

  double Exponential(double mean) { return -mean * std::log(Uniform()); }
  // Mean 1, coefficient of variation `cv`.
  double LogNormal(double cv) {
    const double variance = std::log(1 + cv * cv);
    return std::exp(std::sqrt(variance) * Normal() - variance / 2);
  }

  double Varied(const ComputeVariation& variation) {
    const double normal = Normal();
    return Draw(variation, normal, Uniform());
  }

 private:
  double Uniform() { return (static_cast<double>(generator_.Next() >> 11) + 0.5) * 0x1p-53; }  // in (0, 1)
  double Normal() { return std::sqrt(-2 * std::log(Uniform())) * std::cos(2 * M_PI * Uniform()); }

  SplitMix64 generator_;
};

}  // namespace psring
