// The times of all ranks: exchanged, and combined into samples.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ring_worker/bench/bench_setup.h"
#include "ring_worker/bench/bench_turns.h"

namespace psring {

// Collective. Sets each case's calls per turn from `call_ns`: by case, the time of one call on this rank. The
// slowest rank's time decides, so that all ranks make the same number of calls.
absl::Status ChooseCalls(BenchSetup& setup, const std::vector<int64_t>& call_ns,
                         std::vector<BenchCase>& cases);

// Collective. Returns the samples by case on rank 0; empty on other ranks.
absl::StatusOr<std::vector<Samples>> GatherSamples(BenchSetup& setup, const std::vector<BenchCase>& cases);

}  // namespace psring
