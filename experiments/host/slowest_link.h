// Which node or link of a network is slower than the others. Pure.
#pragma once

#include "experiments/host/network_report.h"

namespace psring {

// A node is slow if even the fastest of its links, in one direction, is much slower than those of the other
// nodes. Else a link is slow if its rate is much lower than those of the other links. Between two nodes, only
// the directions of their link can be told apart. If no rate differs, latencies are compared in the same way.
struct SlowestLink {
  enum class Kind {
    kNone,  // nothing was measured
    kNode,  // `from` is the node
    kLink,  // from `from` to `to`
  };
  Kind kind = Kind::kNone;
  bool slow = false;                     // much slower than the others; else only the slowest of similar ones
  bool by_latency = false;               // `latency_s` is the reason, not the rate
  bool sends = false, receives = false;  // kNode: the directions in which it is slow
  int from = 0, to = 0;
  double bytes_per_s = 0, others_bytes_per_s = 0;  // its rate, and the median of the others
  double latency_s = 0, others_latency_s = 0;      // with `by_latency`

  bool node() const { return kind == Kind::kNode; }
};

// A rate is much lower below this part of the others' median.
inline constexpr double kMuchSlower = 0.8;

// Of the figures of ProbeScope::kAllPairs.
SlowestLink SlowestOf(const NetworkReport& network);

}  // namespace psring
