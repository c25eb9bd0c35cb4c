// How long a collective takes on a described network: drives the very Schedule that the workers run. Pure.
//
// Each rank goes through rounds and slabs in the order of groups/execution.h: chunks are cut into segments,
// slab s starts round r behind slab s + depth's round r - 1, at most 2 * depth are under way, and a round of
// a slab starts when the slab's round before it is done. What a rank sends another goes over one connection,
// in order. A transfer of b bytes has come after its share of the links has carried b, plus the latency; what
// is added is added then. Where connections between nodes have sockets (Cluster::socket_bytes) a sender is
// done as soon as one has taken its bytes, and bytes that nobody waits for yet go ahead and take their share
// of the receiver's card; elsewhere bytes wait for their receiver, and their sender for them.
//
// *class*: ranks that do the same at the same time, because the schedule says so (Schedule::symmetry_class)
// and because they stand at the same place of like nodes. One of each is simulated and stands for all, which
// is exact.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "experiments/simulator/cluster.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {

struct Pipelining {
  double segment_bytes = 512 << 10;  // of our TCP transport
  int depth = 8;
};

struct CollectiveTime {
  double seconds = 0;  // until the last rank is done
  double mean_s = 0;   // until a rank is done, on average: a star's root sends while others wait
  // Of them, as if at full rate: the busiest card, the busiest link inside a node, the fabric between nodes.
  double card_busy_s = 0, intra_busy_s = 0, fabric_busy_s = 0;
  double adding_s = 0;   // of the rank that adds most
  int64_t classes = 0;   // that were simulated
  bool coarser = false;  // the segments were made longer to bound the work
};

// Work beyond this many transfers is made coarser, then refused.
inline constexpr int64_t kMostTransfers = 6'000'000;

// `tokens`: what is left of the cards' burst when it begins; by default all.
// ResourceExhausted: too many classes times rounds; the schedule has no symmetry that helps.
absl::StatusOr<CollectiveTime> SimulateCollective(const Schedule& schedule, const Cluster& cluster,
                                                  double bytes, const Pipelining& pipelining,
                                                  std::optional<double> tokens = std::nullopt);

}  // namespace psring
