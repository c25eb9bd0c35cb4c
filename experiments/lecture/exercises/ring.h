// The interface of the exercise `ring`; README.md explains it.
#pragma once

#include <cstddef>
#include <vector>

// What one rank does in one round: it sends one chunk and receives another, at the same time.
struct RingRound {
  int to = 0;         // the rank to which it sends
  int sent = 0;       // the chunk that it sends
  int from = 0;       // the rank from which it receives
  int received = 0;   // the chunk that it receives
  bool adds = false;  // true: it adds the received values to its own; false: it replaces its own by them
};

// Appends all rounds of `rank`, in order, to `rounds`, which is empty at the call. Ranks and chunks have the
// numbers 0 to `ranks` - 1.
extern "C" void ListRounds(int ranks, int rank, std::vector<RingRound>& rounds);
