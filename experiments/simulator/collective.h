// The time of a collective on a described network: simulates the Schedule that the workers run. Pure.
//
// Each rank goes through rounds and slabs in the order of ring_worker/groups/execution.h: chunks are cut into
// slabs; slab s starts round r after round r - 1 of slab s + depth; at most 2 * depth are in flight; a slab's
// round starts when its previous round is done. A rank sends to another over one connection, in order. A
// transfer arrives one latency after its share of the links has carried its bytes; additions follow then. If
// connections between nodes have sockets (Cluster::socket_bytes), a send is done when its socket has the
// bytes, and bytes can arrive before their receive starts; otherwise sender and receiver wait for each other.
//
// *class*: ranks that do the same at the same time, because Schedule::symmetry_class says so and they have
// the same place on like nodes. Simulating one rank per class is exact.
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
  double mean_s = 0;   // until a rank is done, on average
  // Busy time at full rate of the busiest card, the busiest link inside a node, and the fabric between nodes.
  double card_busy_s = 0, intra_busy_s = 0, fabric_busy_s = 0;
  double adding_s = 0;  // of the rank that adds most
  int64_t classes = 0;  // simulated
};

// With more transfers than this the slabs become larger; if that is not enough, it is an error.
inline constexpr int64_t kMostTransfers = 6'000'000;

// `tokens`: bytes left of the cards' burst at the start; by default all.
// ResourceExhausted: too many classes times rounds.
absl::StatusOr<CollectiveTime> SimulateCollective(const Schedule& schedule, const Cluster& cluster,
                                                  double bytes, const Pipelining& pipelining,
                                                  std::optional<double> tokens = std::nullopt);

}  // namespace psring
