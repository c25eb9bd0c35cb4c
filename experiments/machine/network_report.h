// What is measured of the network between machines, and the figures. All machines derive the same phases; in
// a phase, all its flows run at once, each from one machine to another. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

struct ProbeFlow {
  int from = 0, to = 0;
};
struct ProbePhase {
  enum class Kind {
    kLatency,
    kRate,
    kInto,       // the rates into one node from all others at once
    kAllAtOnce,  // the rates from each node to the next one, all at once
  };
  Kind kind = Kind::kRate;
  std::string what;  // of a flow, for errors: "the latency", "the rate of all machines at once"
  double warmup_s = 0, seconds = 0;
  std::vector<ProbeFlow> flows;
};

// kNeighbours: each node and the next one, in a ring; then all of them at once. kAllPairs: every pair of
// nodes, twice; then, of more than two nodes, all others into each one; then the ring at once. In phases of
// single pairs, every node takes part in one flow at most.
enum class ProbeScope { kNeighbours, kAllPairs };
std::vector<ProbePhase> ProbePhases(int nodes, ProbeScope scope);

// Figures of the network between N nodes; *measured*. A row of a matrix is the sending node; its diagonal,
// and what was not measured, is 0.
struct NetworkReport {
  int nodes = 0;
  std::vector<double> latency_s;    // N x N, symmetric: half a round trip of 4 bytes
  std::vector<double> bytes_per_s;  // N x N: one pair at a time
  std::vector<double> into;         // bytes/s into i from all others at once; empty: not measured
  std::vector<double> ring;         // bytes/s from i to i + 1, all at once

  bool all_pairs() const;  // whether every rate was measured
  double latency(int from, int to) const { return latency_s[Index(from, to)]; }
  double rate(int from, int to) const { return bytes_per_s[Index(from, to)]; }

 private:
  size_t Index(int from, int to) const {
    return static_cast<size_t>(from) * static_cast<size_t>(nodes) + static_cast<size_t>(to);
  }
};
double SlowestRate(const NetworkReport& network);  // bytes/s, of a pair; 0: none was measured

// `results`: of each of the phases, one figure per flow.
NetworkReport ReportOf(int nodes, const std::vector<ProbePhase>& phases,
                       const std::vector<std::vector<double>>& results);

// The figures of all flows of a phase from what each node sent: "FLOW=FIGURE ..." of the flows that it
// measured, of latencies those that it sends, else those that it receives. InvalidArgument names a node that
// sent something else, or a flow without a figure.
absl::StatusOr<std::vector<double>> FiguresOf(const ProbePhase& phase, const std::vector<std::string>& sent);

// The node that measures the flow.
int MeasuredBy(const ProbePhase& phase, const ProbeFlow& flow);

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
