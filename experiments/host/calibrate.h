// How fast this machine's own wires are: the numbers that the cost model is fed with.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "experiments/theory/cost_model.h"

namespace psring {

// Measures, over TCP on the loopback and for about `time` in all:
//   latency_s           half of a ping-pong of 4 bytes between two threads
//   bytes_per_s         one connection, one direction
//   medium_bytes_per_s  as many connections at once as there are pairs of cores: what all ranks share
//   add_s_per_byte      one thread adding float32 arrays that do not fit into its caches
// Ranks on one host have no links of their own. A ring of N ranks therefore sees medium / N per link
// (*derived*).
absl::StatusOr<Wires> CalibrateLoopback(int cores, absl::Duration time);

}  // namespace psring
