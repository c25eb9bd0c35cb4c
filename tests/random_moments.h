// Tests that do something at moments nobody chose, many times over. PSRING_DEATHS says how many times,
// PSRING_SEED where to begin; each time's seed is printed.
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

// `body(random)`, `rounds` times unless the environment says otherwise, until one fails.
template <typename Body>
void AtRandomMoments(int64_t rounds, const Body& body) {
  rounds = FromEnvironment("PSRING_DEATHS", rounds);
  const int64_t first = FromEnvironment("PSRING_SEED", std::random_device{}() % 1'000'000);
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
