// The workers that are simulated with parameter servers, and the network resources of each. Pure.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "experiments/simulator/cluster.h"
#include "experiments/simulator/fluid_network.h"
#include "experiments/simulator/servers.h"
#include "ps_server/consistency/consistency.h"

namespace psring {

enum class Simulated {
  kGroups,  // one group for all workers that act alike
  kSample,  // single workers, about ServerRun::most_alone if each push is an update by itself
  kEach,    // every worker, in the order of their numbers
};

// Workers first_worker to first_worker + workers - 1 act alike.
struct GroupLayout {
  double weight = 1;  // workers that each of these represents
  int first_worker = 0, workers = 1;
  bool slow = false;
  size_t push_kind = 0, pull_kind = 0;  // kinds of flow in the network
};

// Resources: one node's cards, or those of all nodes of a kind.
struct NodePorts {
  size_t out = 0, in = 0;
};

struct ServerLayout {
  std::vector<GroupLayout> groups;
  int simulated_workers = 0;
  size_t fabric = 0, processor = 0, host = 0;  // resources; host: of the servers, per byte moved
  std::vector<NodePorts> server_ports, worker_ports;
};

// InvalidArgument: clipping although each push is an update, no servers, or more colocated servers or slow
// workers than workers.
absl::Status CheckServers(const ServerRun& run, const WaitingRule& rule);

// Adds the resources and kinds of flow to `network`. `each_alone`: each push is an update by itself.
ServerLayout LayOutServers(const ServerRun& run, const Cluster& cluster, Simulated simulated, bool each_alone,
                           FluidNetwork& network);

}  // namespace psring
