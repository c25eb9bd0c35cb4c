// What many senders and many nodes cost on a network, and what a barrier costs. Pure.
//
// *senders*: with k nodes sending into one port, queues overflow and retransmissions leave 1/(1 + loss (k -
// 1)) of its rate (TCP incast: Phanishayee et al. 2008; Chen et al. 2009). Step times with two numbers of
// workers and the same servers determine `sender_loss`. *nodes*: flows between n nodes collide in the
// switches, which leaves 1/(1 + loss (log2 n - 1)) of a card's rate (flows hashed to paths: Raab & Steger
// 1998 bound the load of the fullest path by O(log n)). The bus bandwidths of a ring on two numbers of nodes
// determine `node_loss`. *barrier*: ceil(log2 n) rounds of the dissemination barrier (Hensgen, Finkel &
// Manber 1988).
#pragma once

#include "experiments/simulator/cluster.h"

namespace psring {

// The remaining share of a rate, in (0, 1].
double ShareWithSenders(double sender_loss, int senders);
double ShareWithNodes(double node_loss, int nodes);

// The same cluster with the cards' rate reduced for `nodes` communicating nodes.
Cluster WithNodes(Cluster cluster, int nodes);

double BarrierSeconds(const Cluster& cluster, int nodes);

}  // namespace psring
