#include "experiments/simulator/contention.h"

#include <cmath>

namespace psring {

double ShareWithSenders(double sender_loss, int senders) {
  return senders <= 1 ? 1 : 1 / (1 + sender_loss * (senders - 1));
}

double ShareWithNodes(double node_loss, int nodes) {
  return nodes <= 2 ? 1 : 1 / (1 + node_loss * (std::log2(nodes) - 1));
}

Cluster WithNodes(Cluster cluster, int nodes) {
  cluster.fraction *= ShareWithNodes(cluster.node_loss, nodes);
  return cluster;
}

double BarrierSeconds(const Cluster& cluster, int nodes) {
  return nodes <= 1 ? 0 : cluster.barrier_s * std::ceil(std::log2(nodes));
}

}  // namespace psring
