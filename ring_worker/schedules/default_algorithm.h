// The algorithm of a call in a group for which none is chosen.
#pragma once

#include <cstddef>

#include "ring_worker/schedules/schedule.h"

namespace psring {

inline constexpr char kDefaultAlgorithm[] = "default";

// For a call with `bytes` of input and result per rank (an all-gather: of result, a reduce-scatter: of
// input). It depends on nothing else, so that equal calls have equal bits. The limits between small and large
// were measured with 2, 4 and 8 processes on one machine (experiments/results/collectives.md).
const char* DefaultAlgorithm(Collective collective, size_t bytes, int ranks, bool share_memory);

}  // namespace psring
