// Proves a schedule, by running it on sets of contributions instead of numbers.
#pragma once

#include "absl/status/status.h"
#include "ring_worker/schedule.h"

namespace psring {

enum class Goal { kAllReduce, kBroadcastFrom0 };

// OK if, for all ranks: every transfer names a peer and chunks that exist; every send meets a receive of the
// same chunks in the same round; no round both receives (without adding) and adds into one chunk, or receives
// into one twice; the rounds cannot deadlock; and at the end every chunk of every rank holds each rank's
// contribution exactly once (kAllReduce) or rank 0's alone (kBroadcastFrom0). Otherwise the error says which
// rank, round and chunk.
absl::Status CheckSchedule(const Schedule& schedule, Goal goal);

}  // namespace psring
