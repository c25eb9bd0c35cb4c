// Random numbers that are the same on every machine (the standard's distributions are not).
#pragma once

#include <cmath>
#include <cstdint>

namespace psring {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  // SplitMix64 (Steele, Lea & Flood 2014).
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  double Uniform() { return (static_cast<double>(Next() >> 11) + 0.5) * 0x1p-53; }  // inside (0, 1)
  double Exponential(double mean) { return -mean * std::log(Uniform()); }
  double Normal() { return std::sqrt(-2 * std::log(Uniform())) * std::cos(2 * M_PI * Uniform()); }
  // Mean 1, coefficient of variation `cv`.
  double LogNormal(double cv) {
    const double variance = std::log(1 + cv * cv);
    return std::exp(std::sqrt(variance) * Normal() - variance / 2);
  }

 private:
  uint64_t state_;
};

}  // namespace psring
