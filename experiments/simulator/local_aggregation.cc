#include "experiments/simulator/local_aggregation.h"

#include <algorithm>

#include "absl/status/status.h"

namespace psring {

Cluster MachinesOf(const Cluster& cluster) {
  Cluster machines = cluster;
  machines.gpus_per_node = machines.cards_per_node = 1;
  machines.link_bytes_per_s *= cluster.cards_per_node;
  machines.burst_bytes *= cluster.cards_per_node;
  return machines;
}

MachineInside InsideOf(const Cluster& cluster, int workers) {
  return {.workers = workers,
          .bytes_per_s = cluster.intra_bytes_per_s,
          .latency_s = cluster.intra_latency_s,
          .add_s_per_byte = cluster.add_s_per_byte};
}

std::vector<double> AggregatedReady(const Cluster& cluster, int workers, const std::vector<double>& bytes,
                                    const std::vector<double>& ready_s) {
  std::vector<double> ready;
  double end = 0;
  for (size_t b = 0; b < bytes.size(); ++b) {
    end = std::max(end, ready_s[b]) + ReduceSeconds(InsideOf(cluster, workers), bytes[b]);
    ready.push_back(end);
  }
  return ready;
}

absl::StatusOr<Delays> DelaysOfMachines(const Delays& delays, int workers_per_machine) {
  if (!delays.jitter.is_zero()) {
    return absl::InvalidArgumentError(
        "random delays of single workers are not simulated with local aggregation; use --compute_varies, "
        "which varies between machines");
  }
  Delays machines{.seed = delays.seed};
  const size_t step = static_cast<size_t>(workers_per_machine);
  for (size_t worker = 0; worker < delays.slowness.size(); worker += step) {
    const auto begin = delays.slowness.begin() + static_cast<std::ptrdiff_t>(worker);
    const auto end = begin + static_cast<std::ptrdiff_t>(std::min(step, delays.slowness.size() - worker));
    machines.slowness.push_back(std::max(1.0, *std::max_element(begin, end)));
  }
  return machines;
}

}  // namespace psring
