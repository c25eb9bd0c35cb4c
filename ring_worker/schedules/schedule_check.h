// Proves a schedule, by running it on expressions instead of numbers.
#pragma once

#include "absl/status/status.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {

// OK if, for all ranks and rounds, `schedule` keeps the contract of Schedule::Round and is `collective`:
//
//   * every transfer names a peer and chunks that exist; from itself a rank only adds;
//   * the k-th send from one rank to another meets the k-th receive there in the round of the same number,
//   with
//     the same chunks, and no rank is done before its peers are done with it: nothing waits forever;
//   * receives into one chunk in one round name the same chunks, and a kReceive is the first of them;
//   * unless copies_sends(), no rank receives into a chunk in the round in which it sends it: nothing is
//     overwritten that a peer has still to read;
//   * at the end every chunk holds what `collective` wants, each contribution exactly once; a broadcast's
//   from
//     `root`. reduce-scatter and all-gather have as many chunks as ranks;
//   * after an all-reduce all ranks hold the same bits: their values are the same expression in
//   floating-point
//     addition, which is commutative but not associative.
//
// Otherwise FailedPrecondition, which says which rank, round and chunk. The cost is that of every transfer's
// chunks, once: 64 ranks take milliseconds.
absl::Status CheckSchedule(const Schedule& schedule, Collective collective, int root = 0);

}  // namespace psring
