// What many senders and many nodes cost on a network, and what a barrier costs. Pure.
//
// *senders*: with k nodes sending into one port, queues overflow and retransmissions leave 1/(1 + loss (k -
// 1)) of its rate (TCP incast: Phanishayee et al. 2008; Chen et al. 2009). `sender_loss` follows from the
// steps of two numbers of workers on as many servers. *nodes*: flows between n nodes collide in the switches,
// which leaves 1/(1 + loss (log2 n - 1)) of a card's rate (flows hashed to paths: Raab & Steger 1998 bound
// the fullest path by O(log n)). `node_loss` follows from the bus bandwidth of a ring on two numbers of
// nodes. *barrier*: ceil(log2 n) rounds of the dissemination barrier (Hensgen, Finkel & Manber 1988).
#pragma once

#include "experiments/simulator/cluster.h"

namespace psring {

// Shares of a rate that are left, above 0 to 1.
double ShareWithSenders(double sender_loss, int senders);
double ShareWithNodes(double node_loss, int nodes);

// The same cluster with its cards at the rate that `nodes` communicating nodes leave.
Cluster WithNodes(Cluster cluster, int nodes);

double BarrierSeconds(const Cluster& cluster, int nodes);

}  // namespace psring
