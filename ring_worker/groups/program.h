// A schedule, prepared to be run many times by one rank: what is the same in every call is worked out once.
#pragma once

#include <memory>
#include <vector>

#include "ring_worker/schedules/schedule.h"

namespace psring {

struct SendStep {
  int peer;
  int first_chunk, chunk_count;
  bool copy;   // a receive of the same round writes there
  bool fresh;  // nothing has been received there before: it is still the caller's input
};

struct GatherStep {
  int first_chunk, chunk_count;
  std::vector<int> sources;  // from left to right; the rank itself stands for its own values
  bool fresh;                // our own values are still the caller's input
};

struct RoundSteps {
  std::vector<SendStep> sends;
  std::vector<GatherStep> gathers;
  // The last earlier round that touches memory which this one writes, or writes memory which this one reads;
  // -1: none. A round may start when that one is done.
  int after = -1;

  bool empty() const { return sends.empty() && gathers.empty(); }
};

struct Program {
  int chunks = 1;
  // As many rounds for every rank; those in which this rank has nothing to do are empty.
  std::vector<RoundSteps> rounds;
  int last_round = -1;        // the last in which it has; -1: none
  std::vector<bool> written;  // by chunk: this rank receives into it at some time
};

// `whole`: a transfer of several chunks stays one; else it becomes one a chunk, which can then be cut into
// segments. Sender and receiver must agree.
Program MakeProgram(const Schedule& schedule, int rank, bool whole);

}  // namespace psring
