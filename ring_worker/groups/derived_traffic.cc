#include "ring_worker/groups/derived_traffic.h"

#include <algorithm>

namespace psring {

Traffic DerivedTraffic(const CollectiveCall& call, int ranks) {
  // The whole buffer is the input of a reduce-scatter and the output of an all-gather.
  const uint64_t whole = std::max(call.in.bytes(), call.out.bytes());
  const uint64_t passes = call.collective == Collective::kAllReduce ? 2 : 1;
  const uint64_t bytes = passes * whole * uint64_t(ranks - 1) / uint64_t(ranks);
  return {.payload_tx_bytes = bytes, .payload_rx_bytes = bytes};
}

}  // namespace psring
