// Local aggregation: the workers of a machine add their gradients, push only the sum, and share the pulled
// weights. A machine is then one worker on the network (BytePS, Jiang et al.
// 2020, 4.2; MXNet's `device` key-value store; TensorFlow's mirrored towers). Pure.
//
// Within the machine a reduce-scatter precedes the push and an all-gather follows the pull, each (g-1)/g of
// the bytes over a GPU's link, one bucket at a time.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "experiments/simulator/cluster.h"
#include "experiments/simulator/servers.h"

namespace psring {

// The same network with one worker per machine, which uses all of the machine's cards.
Cluster MachinesOf(const Cluster& cluster);

// Seconds to add a bucket within a machine of `workers`, and to share its weights.
double ReduceSeconds(const Cluster& cluster, int workers, double bytes);
double GatherSeconds(const Cluster& cluster, int workers, double bytes);

// `ready_s`: when each bucket's gradient is ready on a worker. Returns when each sum is ready on the machine.
std::vector<double> AggregatedReady(const Cluster& cluster, int workers, const std::vector<double>& bytes,
                                    const std::vector<double>& ready_s);

// A machine is as slow as its slowest worker. InvalidArgument: random delays, which are per worker.
absl::StatusOr<Delays> DelaysOfMachines(const Delays& delays, int workers_per_machine);

}  // namespace psring
