// A network on which only bytes take time.
#pragma once

#include "experiments/simulator/cluster.h"

namespace psring {

// Links of 1 GB/s. Latencies are those between nodes.
inline Cluster TestNetwork(double latency_s = 0) {
  return {.link_bytes_per_s = 1e9,
          .fraction = 1,
          .latency_s = latency_s,
          .intra_latency_s = 0,
          .add_s_per_byte = 0,
          .server_add_s_per_byte = 0,
          .server_update_s_per_byte = 0};
}

}  // namespace psring
