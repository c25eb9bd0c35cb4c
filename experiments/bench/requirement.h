// --require_busbw: whether the all-reduces are fast enough. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "experiments/bench/plan.h"
#include "experiments/bench/result.h"

namespace psring {

// Aborted unless, for every number of workers above 1, the fastest all-reduce of the largest size has the
// required bus bandwidth. The message names that all-reduce, then `slowest` (the slowest node or link), or,
// if it is empty, the slowest of several all-reduces.
absl::Status CheckBusbw(const BenchRequest& request, const BenchResult& result, const std::string& slowest);

}  // namespace psring
