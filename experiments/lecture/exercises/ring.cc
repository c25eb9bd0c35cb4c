// The exercise `ring`: fill in ListRounds, then run the check. README.md explains both.
#include "ring.h"

// The right neighbor of `rank` is (rank + 1) % ranks, the left one is (rank + ranks - 1) % ranks.
void ListRounds(int ranks, int rank, std::vector<RingRound>& rounds) {
  // Phase 1, reduce-scatter: in each round, which chunk goes to the right, and which one comes from the left?

  // Phase 2, all-gather: the same questions for the sums.
}
