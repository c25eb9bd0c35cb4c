// The links that the ranks of one axis of a layout use, and what a ring over them costs. Pure.
#pragma once

#include "experiments/simulator/cluster.h"

namespace psring {

// What a device sends over its link inside the node, and each card of its node, in one direction.
struct LinkBytes {
  double inside = 0, between = 0;
  LinkBytes& Add(const LinkBytes& other, double times = 1) {
    inside += times * other.inside;
    between += times * other.between;
    return *this;
  }
};

// Rings of `ranks` devices whose numbers differ by `stride`. All rings of the axis work at the same time, and
// those with devices on one node share its cards.
struct AxisLinks {
  const Cluster* cluster = nullptr;
  int ranks = 1;
  int on_node = 1;  // ranks of a ring on one node
  int rings = 1;    // of the axis with ranks on one node
  double card = 0;  // bytes/s that each card of a node carries

  // Groups or nodes must contain whole ones of the other; `workers`: all devices.
  static AxisLinks Of(const Cluster& cluster, int workers, int stride, int ranks);

  // A reduce-scatter or an all-gather of `bytes`, half of an all-reduce: each rank sends (n-1)/n of them.
  // (n-1) latencies, of which one per node is between nodes; adding takes no time.
  double HalfSeconds(double bytes) const;
  LinkBytes HalfBytes(double bytes) const;

  // An all-to-all of `bytes` of each rank, of which (n-1)/n are for others: (n-1) messages.
  double AllToAllSeconds(double bytes) const;
  LinkBytes AllToAllBytes(double bytes) const;

  // A message of each device to the one that is `stride` devices further, between nodes or inside of one.
  double MessageSeconds(double bytes, bool between) const;
  LinkBytes MessageBytes(double bytes, bool between) const;
};

}  // namespace psring
