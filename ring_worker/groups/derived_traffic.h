// Payload of one call where the library that moves it does not say: derived from what a bandwidth-optimal
// algorithm must send, averaged over the ranks. An algorithm that sends more (recursive doubling, lg N M) is
// counted as if it did not.
#pragma once

#include "ring_worker/groups/process_group.h"

namespace psring {

// With M bytes of the whole buffer and N ranks: all-reduce 2(N-1)/N M, reduce-scatter, all-gather and
// broadcast (N-1)/N M, sent and received by each rank.
Traffic DerivedTraffic(const CollectiveCall& call, int ranks);

}  // namespace psring
