#include "experiments/costs/sequence_costs.h"

namespace psring {

double RingValues(int ranks) { return 6. * (ranks - 1) / ranks; }

double UlyssesValues(int ranks) { return 8. * (ranks - 1) / ranks / ranks; }

double ContiguousShare(int ranks) { return ranks / (2. * ranks - 1); }

double RingHiddenFrom(const SequenceSpeed& speed) {
  return speed.flops_per_s * speed.value_bytes / speed.bytes_per_s;
}

// Of c tokens per rank, both in units of the time for h c values, with x = c / RingHiddenFrom: the ring waits
// 2 (C-1) (1 - x), and Ulysses 4 (C-1)/C.
double RingPaysFrom(int ranks, const SequenceSpeed& speed) {
  return (1 - 2. / ranks) * RingHiddenFrom(speed);
}

}  // namespace psring
