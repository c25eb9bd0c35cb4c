// Local aggregation on a simulated cluster (trainer/strategies/table/cost_model.h), one bucket at a time.
// Pure.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "experiments/simulator/cluster.h"
#include "experiments/simulator/servers.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {

// The same network with one worker per machine, which uses all of the machine's cards.
Cluster MachinesOf(const Cluster& cluster);

// The inside of a machine of `workers`.
MachineInside InsideOf(const Cluster& cluster, int workers);

// `ready_s`: when each bucket's gradient is ready on a worker. Returns when each sum is ready on the machine.
std::vector<double> AggregatedReady(const Cluster& cluster, int workers, const std::vector<double>& bytes,
                                    const std::vector<double>& ready_s);

// A machine is as slow as its slowest worker. InvalidArgument: random delays, which are per worker.
absl::StatusOr<Delays> DelaysOfMachines(const Delays& delays, int workers_per_machine);

}  // namespace psring
