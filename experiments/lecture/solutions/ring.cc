// A solution of the exercise `ring`: ./run exercise ring experiments/lecture/solutions/ring.cc
#include "ring.h"

// In each round, a rank sends what it received in the one before; in the first round, the chunk of its own
// number. After N-1 rounds that chunk is a complete sum.
void ListRounds(int ranks, int rank, std::vector<RingRound>& rounds) {
  const auto wrap = [ranks](int n) { return (n % ranks + ranks) % ranks; };
  for (int round = 0; round < 2 * (ranks - 1); ++round) {
    const int sent = wrap(rank - round);
    rounds.push_back({.to = wrap(rank + 1),
                      .sent = sent,
                      .from = wrap(rank - 1),
                      .received = wrap(sent - 1),
                      .adds = round < ranks - 1});
  }
}
