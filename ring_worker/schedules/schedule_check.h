// Verifies a schedule by executing it on symbolic expressions instead of numbers.
#pragma once

#include "absl/status/status.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {

// OK if, for all ranks and rounds, `schedule` keeps the contract of Schedule::Round and implements
// `collective`:
//
//   * every transfer names a peer and chunks that exist; only a kReceiveAdd may name the rank itself;
//   * the k-th send from one rank to another matches the k-th receive there in the same round, with the same
//    chunks, and no rank ends while a peer still needs it: there is no deadlock;
//   * receives into one chunk in one round name the same chunks, and a kReceive is the first of them;
//   * unless copies_sends(), no rank receives into a chunk in the round in which it sends it: nothing is
//    overwritten that a peer has not read yet. With keeps_input(), none sends a chunk after that round;
//   * at the end every chunk holds what `collective` requires, each contribution exactly once; a broadcast's
//    from `root`. reduce-scatter, all-gather and all-to-all have as many chunks as ranks;
//   * after an all-reduce all ranks hold the same bits: their values are the same expression in
//    floating-point addition, which is commutative but not associative.
//
// Otherwise FailedPrecondition, which names rank, round and chunk, and where a contribution was first added
// again. The cost is proportional to the chunks of all transfers: 64 ranks take milliseconds.
absl::Status CheckSchedule(const Schedule& schedule, Collective collective, int root = 0);

}  // namespace psring
