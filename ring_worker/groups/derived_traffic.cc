#include "ring_worker/groups/derived_traffic.h"

#include <algorithm>

namespace psring {

Traffic DerivedTraffic(const CollectiveCall& call, int ranks) {
  // In a reduce-scatter the input is the whole buffer, in an all-gather the output.
  const uint64_t whole = std::max(call.in.bytes(), call.out.bytes());
  const uint64_t passes = call.collective == Collective::kAllReduce ? 2 : 1;
  const uint64_t bytes = passes * whole * uint64_t(ranks - 1) / uint64_t(ranks);
  return {.payload_tx_bytes = bytes, .payload_rx_bytes = bytes};
}

}  // namespace psring
