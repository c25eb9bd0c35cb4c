// Measures this machine's loopback for the cost model.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "experiments/theory/cost_model.h"

namespace psring {

// Measures, over TCP on the loopback and for about `time` in total:
//   latency_s           half the round trip of 4 bytes between two threads
//   bytes_per_s         one connection in one direction
//   medium_bytes_per_s  one connection per pair of cores, summed: the capacity that all ranks share
//   add_s_per_byte      one thread adding float32 arrays that exceed its caches
// Ranks on one host share this capacity, so each of the N links of a ring has medium / N (*derived*).
absl::StatusOr<Wires> CalibrateLoopback(int cores, absl::Duration time);

}  // namespace psring
