// The network between machines as text and as CSV. Pure.
#pragma once

#include <string>
#include <vector>

#include "experiments/host/network_report.h"
#include "experiments/host/slowest_link.h"

namespace psring {

// Up to this many nodes, NetworkText has the matrices.
inline constexpr int kMaxNodesOfMatrix = 16;

// Lines that begin with #: a matrix of rates and one of latencies (a row is the sending node), the names of
// the nodes, and the slowest node or link in a sentence. `machines`: "HOST at ADDRESS", of each node.
std::string NetworkText(const NetworkReport& network, const std::vector<std::string>& machines);

// "the slowest node is node 2 (HOST at ADDRESS): ..."; empty if nothing was measured.
std::string SlowestText(const SlowestLink& slowest, const std::vector<std::string>& machines);

// A row for each pair of nodes in each direction.
std::string NetworkCsv(const std::string& run_id, const NetworkReport& network,
                       const std::vector<std::string>& machines);

}  // namespace psring
