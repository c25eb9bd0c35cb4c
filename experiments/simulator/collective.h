// The time of a collective on a described network: simulates the Schedule that the workers run. Pure.
//
// Each rank starts and awaits the rounds of slabs as the workers do: by StartOrder of the lowered schedule
// (ring_worker/schedules/lowered_schedule.h). A rank sends to each peer over one connection, in order. A
// transfer arrives one latency after the links have carried its bytes, and is then added. If connections
// between nodes have socket buffers (Cluster::socket_bytes), a send is done when its socket has the bytes,
// and bytes can arrive before their receive starts; otherwise sender and receiver wait for each other.
//
// *class*: ranks that do the same at the same time: equal Schedule::symmetry_class, and the same place on
// equal nodes. Simulating one rank per class is exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "experiments/simulator/cluster.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {

struct Pipelining {
  double segment_bytes = 512 << 10;  // as in our TCP transport
  int depth = 8;
};

struct CollectiveTime {
  double seconds = 0;  // until the last rank is done
  double mean_s = 0;   // until a rank is done, on average
  // Busy time at full rate of the busiest card, the busiest link inside a node, and the fabric between nodes.
  double card_busy_s = 0, intra_busy_s = 0, fabric_busy_s = 0;
  double adding_s = 0;  // of the rank with the most additions
  size_t classes = 0;   // simulated; 0: the times are those of theory
};

// Of two exchanges, one after the other.
CollectiveTime Both(CollectiveTime first, const CollectiveTime& next);

// Limits the simulated work: slabs become larger as needed; a schedule with more rounds over all classes,
// or more messages to different classes, is an error.
inline constexpr int64_t kMaxTransfers = 6'000'000;

// `tokens`: bytes of the cards' burst available at the start; by default all.
// ResourceExhausted: too many classes times rounds.
absl::StatusOr<CollectiveTime> SimulateCollective(const Schedule& schedule, const Cluster& cluster,
                                                  double bytes, const Pipelining& pipelining,
                                                  std::optional<double> tokens = std::nullopt);

}  // namespace psring
