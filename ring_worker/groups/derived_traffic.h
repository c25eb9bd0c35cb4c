// Payload in bytes of one call of a library that does not report it: *derived* from what a bandwidth-optimal
// algorithm sends, averaged over the ranks. Other algorithms may send more (recursive doubling: lg N M).
#pragma once

#include "ring_worker/groups/process_group.h"

namespace psring {

// With M bytes of the whole buffer and N ranks: all-reduce 2(N-1)/N M, reduce-scatter, all-gather and
// broadcast (N-1)/N M, sent and received by each rank.
Traffic DerivedTraffic(const CollectiveCall& call, int ranks);

}  // namespace psring
