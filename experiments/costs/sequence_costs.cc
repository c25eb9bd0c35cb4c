#include "experiments/costs/sequence_costs.h"

#include <algorithm>

namespace psring {

double RingValues(int ranks) { return 6. * (ranks - 1) / ranks; }

double UlyssesValues(int ranks) { return 8. * (ranks - 1) / ranks / ranks; }

double ContiguousShare(int ranks) { return ranks / (2. * ranks - 1); }

double RingForwardWait(const RingSteps& steps) {
  double wait = 0;
  for (int step = 0; step + 1 < steps.ranks; ++step) {
    wait += std::max(0., steps.hop_s - (step == 0 ? steps.first_s : steps.block_s));
  }
  return wait;
}

double RingBackwardWait(const RingSteps& steps) {
  if (steps.ranks == 1) return 0;
  double wait = steps.hop_s;
  for (int step = 0; step < steps.ranks; ++step) {
    const int hops = (step + 1 < steps.ranks ? 1 : 0) + (step > 1 ? 1 : 0);  // of keys, of gradients
    wait += std::max(0., hops * steps.hop_s - (step == 0 ? steps.first_s : steps.block_s));
  }
  return wait;
}

double RingHiddenFrom(const SequenceSpeed& speed) {
  return speed.flops_per_s * speed.value_bytes / speed.bytes_per_s;
}

// Of c tokens per rank, both in units of the time for h c values, with x = c / RingHiddenFrom: the ring waits
// 2 (C-1) (1 - x), and Ulysses 4 (C-1)/C.
double RingPaysFrom(int ranks, const SequenceSpeed& speed) {
  return (1 - 2. / ranks) * RingHiddenFrom(speed);
}

}  // namespace psring
