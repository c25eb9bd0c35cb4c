// What is measured of the network between machines, and the figures. All machines derive the same phases; in
// a phase, all its flows run at once, each from one machine to another. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace psring {

struct ProbeFlow {
  int from = 0, to = 0;
};
struct ProbePhase {
  enum class Kind { kLatency, kRate };
  Kind kind = Kind::kRate;
  std::string what;  // of a flow, for errors: "the latency", "the rate of all machines at once"
  double warmup_s = 0, seconds = 0;
  std::vector<ProbeFlow> flows;
};

// Each node and the next one, in a ring; then all of them at once. Pure. In phases of single pairs, every
// node takes part in one flow at most.
std::vector<ProbePhase> ProbePhases(int nodes);

// Figures of the network between N nodes; *measured*. A row of a matrix is the sending node; its diagonal,
// and what was not measured, is 0.
struct NetworkReport {
  int nodes = 0;
  std::vector<double> latency_s;    // N x N, symmetric: half a round trip of 4 bytes
  std::vector<double> bytes_per_s;  // N x N: one pair at a time
  std::vector<double> ring;         // bytes/s from i to i + 1, all at once

  double latency(int from, int to) const { return latency_s[static_cast<size_t>(from * nodes + to)]; }
  double rate(int from, int to) const { return bytes_per_s[static_cast<size_t>(from * nodes + to)]; }
};
// `results`: of each phase of ProbePhases, one figure per flow. Pure.
NetworkReport ReportOf(int nodes, const std::vector<std::vector<double>>& results);

}  // namespace psring
