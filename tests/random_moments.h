// Seeds of random tests, which are printed, and tests that are repeated at random moments. PSRING_SEED is the
// first seed, PSRING_DEATHS the number of repetitions.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

namespace psring {

inline int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::strtoll(text, nullptr, 10) : otherwise;
}

// The seed of a random test: PSRING_SEED, or 1. Printed by the first call.
inline uint32_t TestSeed() {
  static const uint32_t seed = [] {
    const auto chosen = static_cast<uint32_t>(FromEnvironment("PSRING_SEED", 1));
    std::printf("PSRING_SEED=%u\n", chosen);
    return chosen;
  }();
  return seed;
}

// Calls `body(random)` up to `rounds` times, or as often as PSRING_DEATHS says, until one fails.
template <typename Body>
void AtRandomMoments(int64_t rounds, const Body& body) {
  rounds = FromEnvironment("PSRING_DEATHS", rounds);
  const int64_t first = FromEnvironment("PSRING_SEED", 1);
  for (int64_t seed = first; seed < first + rounds && !testing::Test::HasFailure(); ++seed) {
    const std::string again = "PSRING_DEATHS=1 PSRING_SEED=" + std::to_string(seed);
    SCOPED_TRACE(again);
    std::printf("%s\n", again.c_str());
    std::fflush(stdout);
    std::mt19937 random(static_cast<uint32_t>(seed));
    body(random);
  }
}

}  // namespace psring
