// The form of a schedule that is executed and simulated: for one rank, computed once for many calls. Pure.
//
// A call cuts all chunks into the same number of segments; segment s of all chunks together is *slab* s, and
// slabs are independent. Slab s starts its round r after slab s + depth's round r - 1, so that several slabs
// are in flight, and each slab passes all its rounds while it is in the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ring_worker/schedules/schedule.h"

namespace psring {

struct LoweredSend {
  int peer;
  int first_chunk, chunk_count;
  bool copy;             // a receive of the same round writes to this memory
  bool fresh;            // nothing has been received into it: it is still the caller's input
  int reply_round = -1;  // see MarkReplies
};

struct LoweredReceive {
  int first_chunk, chunk_count;
  std::vector<int> sources;  // added from left to right; the rank itself means its own values
  bool fresh;                // our own values are still the caller's input
  bool replies = false;      // see MarkReplies
};

struct LoweredRound {
  std::vector<LoweredSend> sends;        // in the order in which they start
  std::vector<LoweredReceive> receives;  // by chunk; no two overlap
};

struct LoweredSchedule {
  static constexpr int kNoRound = -1;
  static constexpr int kNoTransfers = -2;

  int chunks = 1;
  std::vector<LoweredRound> rounds;  // the same number for every rank
  // By round: the last earlier round that it depends on, because one of them writes memory that the other
  // reads or writes; kNoRound: none; kNoTransfers: this rank has no transfers in the round.
  std::vector<int> after;
  int last_round = kNoRound;     // the last one with transfers
  std::vector<uint8_t> written;  // by chunk: 1 if this rank receives into it in some round
};

// The most rounds of any rank.
int MaxRounds(const Schedule& schedule);

// `rounds`: MaxRounds(schedule). `whole`: a transfer of several chunks stays one; otherwise it becomes one
// per chunk, which can then be cut into segments. Sender and receiver must agree.
LoweredSchedule LowerSchedule(const Schedule& schedule, int rank, int rounds, bool whole);

// Marks transfers whose result returns the way it came. A send's `reply_round`: the round in which the peer's
// values replace what was sent, if no other transfer of this rank uses these chunks from the last receive
// before the send until then. A receive `replies` if its result is sent to all its sources before anything
// else is received into its chunks.
void MarkReplies(LoweredSchedule& lowered, int rank);

// The ranks with which `rank` exchanges anything, in order.
std::vector<int> PeersOf(const Schedule& schedule, int rank);

// Enumerates the rounds of a rank's slabs in the order in which they start: older slabs first. It is the same
// on all ranks, so the earliest unfinished transfer of all ranks can always complete: there is no deadlock.
class StartOrder {
 public:
  // `after`: LoweredSchedule::after, which must outlive this.
  StartOrder(const std::vector<int>& after, int64_t slabs, int64_t depth);

  bool done() const { return wave_ == waves_; }
  // The next to start, unless done().
  int round() const { return static_cast<int>(round_); }
  int64_t slab() const { return wave_ - round_ * depth_; }
  void Advance();

  // How many of the rounds in flight, the oldest first, must be done before the next may start: up to the
  // last one that it depends on, and at least the oldest if 2 * depth are in flight. Elements of `in_flight`
  // have `round` and `slab`.
  template <typename InFlight>
  size_t MustFinish(const InFlight& in_flight) const {
    for (size_t i = in_flight.size(); i > 0; --i) {
      if (in_flight[i - 1].slab == slab() && in_flight[i - 1].round <= after_[round_]) return i;
    }
    return in_flight.size() < static_cast<size_t>(2 * depth_) ? 0 : 1;
  }

 private:
  void SkipEmptyRounds();

  const std::vector<int>& after_;
  const int64_t slabs_, depth_, waves_;
  int64_t wave_ = 0, round_ = 0;  // slab s starts round r in wave s + r * depth
};

}  // namespace psring
