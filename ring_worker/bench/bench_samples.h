// The times of all ranks: exchanged, and combined into samples.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ring_worker/bench/bench_setup.h"
#include "ring_worker/bench/bench_turns.h"

namespace psring {

// Collective. Sets each case's calls per turn from `call_ns`, the time of one call on this rank by case. All
// ranks must make the same number of calls: the slowest rank's time counts.
absl::Status ChooseCalls(BenchSetup& setup, const std::vector<int64_t>& call_ns,
                         std::vector<BenchCase>& cases);

// Collective. On rank 0 the samples by case, on other ranks nothing.
absl::StatusOr<std::vector<Samples>> GatherSamples(BenchSetup& setup, const std::vector<BenchCase>& cases);

}  // namespace psring
