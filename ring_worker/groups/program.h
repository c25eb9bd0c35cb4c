// A schedule prepared for one rank and many calls: everything that is the same in every call is computed
// once.
#pragma once

#include <memory>
#include <vector>

#include "ring_worker/schedules/schedule.h"

namespace psring {

struct SendStep {
  int peer;
  int first_chunk, chunk_count;
  bool copy;   // a receive of the same round writes to this memory
  bool fresh;  // nothing has been received into it: it is still the caller's input
};

struct GatherStep {
  int first_chunk, chunk_count;
  std::vector<int> sources;  // from left to right; the rank itself means its own values
  bool fresh;                // our own values are still the caller's input
};

struct RoundSteps {
  std::vector<SendStep> sends;
  std::vector<GatherStep> gathers;
  // The last earlier round that this one depends on, because one of them writes memory that the other reads
  // or writes; -1: none. This round may start when that one is done.
  int after = -1;

  bool empty() const { return sends.empty() && gathers.empty(); }
};

struct Program {
  int chunks = 1;
  // The same number for every rank; rounds without transfers of this rank are empty.
  std::vector<RoundSteps> rounds;
  int last_round = -1;        // the last round that is not empty; -1: none
  std::vector<bool> written;  // by chunk: this rank receives into it in some round
};

// `whole`: a transfer of several chunks stays one; otherwise it becomes one per chunk, which can then be cut
// into segments. Sender and receiver must agree.
Program MakeProgram(const Schedule& schedule, int rank, bool whole);

// The ranks with which `rank` exchanges anything, in order.
std::vector<int> PeersOf(const Schedule& schedule, int rank);

}  // namespace psring
