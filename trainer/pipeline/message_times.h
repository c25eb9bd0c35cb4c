// How long the bytes of a pipeline's messages are on their way.
//
// An end of a channel that is ready before its peer measures its waiting, too. Only both ends know when the
// later of them was ready, so in the first steps the ranks of a replica exchange when each was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "trainer/pipeline/replica_exchange.h"
#include "trainer/programs/walk_program.h"

namespace psring {

// A message as its two ends measured it, each by the clock of its rank; 0: not this rank's end, or no bytes.
struct MessageEnds {
  NodeTime send, receive;
};

// From the moment when both ends were ready until the receiver had everything, in ns; 0: not known. `ends`:
// of boundary b and micro-batch m, the activation's at (2 b) micro_batches + m and the gradient's at
// (2 b + 1) micro_batches + m. Clocks of different computers may differ by any constant: only if with equal
// clocks a message would arrive before it was sent, the difference is taken from the fastest message of each
// direction, as if both took equally long.
std::vector<int64_t> TransferTimes(const std::vector<MessageEnds>& ends, size_t micro_batches);

// Those of the steps of one rank. Messages are indexed as in TransferTimes. Used by the training thread.
class MessageTimes {
 public:
  // `warmup_steps` of the training: exchanging takes time that measured steps should not have.
  MessageTimes(int boundaries, int micro_batches, int64_t warmup_steps);

  // Collective over the ranks of a replica, after the same step of all: the times of its messages. `own`: of
  // this rank's ends; `samples` of each micro-batch, 0: not sent. Does nothing after the first steps, whose
  // mean then counts for a message of later ones.
  absl::Status Share(ReplicaExchange& replica, int ranks, const std::vector<MessageEnds>& own,
                     const std::vector<int>& samples);

  // Of the step of the last Share, at most `measured_ns`, which this rank's end took.
  int64_t Of(size_t message, int samples, int64_t measured_ns) const;

 private:
  // In ns per sample.
  struct Known {
    double sum = 0;
    int steps = 0;
  };

  const size_t micro_batches_;
  const int64_t steps_to_share_;
  int64_t shared_steps_ = 0;
  std::vector<int64_t> of_step_;  // the last step's; empty: it was not shared
  std::vector<Known> known_;
};

}  // namespace psring
