// The links of a described cluster as resources of a fluid network. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>

#include "experiments/simulator/cluster.h"
#include "experiments/simulator/fluid_network.h"

namespace psring {

// The two directions of a link.
struct LinkPorts {
  size_t out = 0, in = 0;
};

class ClusterLinks {
 public:
  // `cluster` and `network` exist as long as this object. `tokens`: bytes of the cards' burst that are
  // available at the start; by default all.
  ClusterLinks(const Cluster& cluster, int nodes, FluidNetwork& network,
               std::optional<double> tokens = std::nullopt)
      : cluster_(cluster),
        network_(network),
        burst_{cluster.burst_bytes * cluster.cards_per_node,
               std::clamp(tokens.value_or(cluster.burst_bytes * cluster.cards_per_node), 0.0,
                          cluster.burst_bytes * cluster.cards_per_node),
               FullSpeed(cluster) * cluster.cards_per_node},
        fabric_(network.AddResource(FabricRate(nodes))) {}

  // Bytes/s: of one card without a burst, of the cards of a node together, between a GPU and its node, and
  // between `nodes`.
  double CardRate() const { return cluster_.link_bytes_per_s * cluster_.fraction; }
  double CardsRate() const { return CardRate() * cluster_.cards_per_node; }
  double IntraRate() const {
    return cluster_.intra_bytes_per_s > 0 ? cluster_.intra_bytes_per_s : FluidNetwork::kUnlimited;
  }
  double FabricRate(int nodes) const {
    return cluster_.oversubscription > 1 ? CardsRate() * nodes / cluster_.oversubscription
                                         : FluidNetwork::kUnlimited;
  }
  // Of one card, in a burst if there is one.
  double FastestCard() const { return cluster_.burst_bytes > 0 ? FullSpeed(cluster_) : CardRate(); }
  // Of one flow between nodes, over `rings` parallel connections.
  double FlowRate(int rings = 1) const {
    const double connections = cluster_.connection_bytes_per_s > 0 ? cluster_.connection_bytes_per_s * rings
                                                                   : FluidNetwork::kUnlimited;
    return std::min(FastestCard() * std::min(rings, cluster_.cards_per_node), connections);
  }

  // The cards of one more node, and the link of one more GPU.
  LinkPorts AddCards() {
    return {network_.AddResource(CardsRate(), burst_), network_.AddResource(CardsRate(), burst_)};
  }
  LinkPorts AddIntra() { return {network_.AddResource(IntraRate()), network_.AddResource(IntraRate())}; }
  size_t fabric() const { return fabric_; }

 private:
  const Cluster& cluster_;
  FluidNetwork& network_;
  const FluidNetwork::Burst burst_;
  const size_t fabric_;
};

}  // namespace psring
