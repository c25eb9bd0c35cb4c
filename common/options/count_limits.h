// The largest values of flags that count work. Products with workers and samples fit into 64 bits.
#pragma once

#include <cstdint>

namespace psring {

inline constexpr int64_t kMaxCount = 1'000'000'000'000'000;  // of --steps, --samples and other such counts
inline constexpr double kMaxEpochs = 1e9;

}  // namespace psring
