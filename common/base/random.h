// Random numbers that are the same on every machine and with every standard library; the standard
// distributions and std::shuffle are not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace psring {

// Steele, Lea & Flood 2014.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t state) : state_(state) {}

  uint64_t Next() { return Mix(state_ += kStep); }
  void Skip(uint64_t count) { state_ += count * kStep; }

  static uint64_t Mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15;

  uint64_t state_;
};

// Distinct (seed, stream) pairs give unrelated sequences.
class Random {
 public:
  explicit Random(uint64_t seed, uint64_t stream = 0)
      : generator_(SplitMix64::Mix(seed) ^ SplitMix64::Mix(~stream)) {}

  uint64_t Next() { return generator_.Next(); }
  // As if so many numbers had been taken.
  void Skip(uint64_t count) { generator_.Skip(count); }

  // In [0, bound), bound below 2^32; by multiplication (Lemire 2019), with a bias of at most 2^-32.
  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(((Next() >> 32) * bound) >> 32); }

  // In [low, high).
  float Uniform(float low, float high) {
    return low + (high - low) * (static_cast<float>(Next() >> 40) * 0x1p-24f);
  }

  // Almost normal, with mean 0 and deviation 1: the sum of 12 uniform numbers (Irwin-Hall), because
  // libraries' logarithms and cosines differ in their last bits.
  float Normal() {
    uint64_t sum = 0;  // of numbers of 16 bits
    for (int i = 0; i < 3; ++i) {
      const uint64_t bits = Next();
      sum += (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    }
    return static_cast<float>(static_cast<int64_t>(2 * sum) - 12 * 0xffff) * 0x1p-17f;
  }

  template <typename T>
  void Shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[Below(static_cast<uint32_t>(i))]);
    }
  }

 private:
  SplitMix64 generator_;
};

}  // namespace psring
