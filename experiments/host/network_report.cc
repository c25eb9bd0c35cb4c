#include "experiments/host/network_report.h"

#include <algorithm>
#include <utility>

namespace psring {
namespace {

constexpr double kLatencySeconds = 0.1;
constexpr double kWarmup = 0.1, kSeconds = 0.3;
// When several senders share a link, TCP's slow start overfills a switch's queue, and segments are sent again
// for up to about 0.5 s. Measuring begins after that.
constexpr double kSharedWarmup = 0.5, kSharedSeconds = 0.7;

// Pairs of nodes in rounds, so that all pairs occur once and no node occurs twice in a round (the circle
// method of round-robin tournaments).
std::vector<std::vector<ProbeFlow>> PairRounds(int nodes) {
  const int seats = nodes + nodes % 2;
  std::vector<std::vector<ProbeFlow>> rounds;
  for (int round = 0; round + 1 < seats; ++round) {
    std::vector<ProbeFlow>& pairs = rounds.emplace_back();
    for (int i = 0; i < seats / 2; ++i) {
      const int a = i == 0 ? seats - 1 : (round + i) % (seats - 1);
      const int b = (round + seats - 1 - i) % (seats - 1);
      if (a < nodes && b < nodes) pairs.push_back({std::min(a, b), std::max(a, b)});
    }
  }
  return rounds;
}

// Each node to the next one, in rounds without a common node.
std::vector<std::vector<ProbeFlow>> NeighbourRounds(int nodes) {
  std::vector<std::vector<ProbeFlow>> rounds(nodes == 2 ? 2 : 2 + nodes % 2);
  for (int node = 0; node < nodes; ++node) {
    const bool last = nodes > 2 && nodes % 2 == 1 && node == nodes - 1;
    rounds[last ? 2 : static_cast<size_t>(node % 2)].push_back({node, (node + 1) % nodes});
  }
  return rounds;
}

std::vector<ProbeFlow> Reversed(std::vector<ProbeFlow> flows) {
  for (ProbeFlow& flow : flows) std::swap(flow.from, flow.to);
  return flows;
}

}  // namespace

std::vector<ProbePhase> ProbePhases(int nodes, ProbeScope scope) {
  std::vector<ProbePhase> phases;
  const auto add_pair = [&](const std::vector<ProbeFlow>& flows) {
    phases.push_back({.what = "the rate", .warmup_s = kWarmup, .seconds = kSeconds, .flows = flows});
  };
  for (const auto& flows : scope == ProbeScope::kAllPairs ? PairRounds(nodes) : NeighbourRounds(nodes)) {
    phases.push_back({.kind = ProbePhase::Kind::kLatency,
                      .what = "the latency",
                      .seconds = kLatencySeconds,
                      .flows = flows});
    add_pair(flows);
    if (scope == ProbeScope::kAllPairs) add_pair(Reversed(flows));
  }
  ProbePhase ring{
      .what = "the rate of all nodes at once", .warmup_s = kSharedWarmup, .seconds = kSharedSeconds};
  for (int node = 0; node < nodes; ++node) ring.flows.push_back({node, (node + 1) % nodes});
  phases.push_back(ring);
  for (int to = 0; to < nodes && scope == ProbeScope::kAllPairs; ++to) {
    ProbePhase into{
        .what = "the rate of all nodes to one", .warmup_s = kSharedWarmup, .seconds = kSharedSeconds};
    for (int from = 0; from < nodes; ++from) {
      if (from != to) into.flows.push_back({from, to});
    }
    phases.push_back(into);
  }
  return phases;
}

NetworkReport ReportOf(int nodes, ProbeScope scope, const std::vector<std::vector<double>>& results) {
  const auto size = static_cast<size_t>(nodes);
  NetworkReport report{.nodes = nodes, .latency_s = std::vector<double>(size * size)};
  report.bytes_per_s = report.latency_s;
  report.ring.resize(size);
  if (scope == ProbeScope::kAllPairs) report.into.resize(size);
  const std::vector<ProbePhase> phases = ProbePhases(nodes, scope);
  const size_t ring = phases.size() - 1 - report.into.size();
  for (size_t k = 0; k < phases.size() && k < results.size(); ++k) {
    for (size_t i = 0; i < phases[k].flows.size() && i < results[k].size(); ++i) {
      const auto from = static_cast<size_t>(phases[k].flows[i].from);
      const auto to = static_cast<size_t>(phases[k].flows[i].to);
      const double figure = results[k][i];
      if (k == ring) {
        report.ring[from] = figure;
      } else if (k > ring) {
        report.into[to] += figure;
      } else if (phases[k].kind == ProbePhase::Kind::kRate) {
        report.bytes_per_s[from * size + to] = figure;
      } else {
        report.latency_s[from * size + to] = report.latency_s[to * size + from] = figure;
      }
    }
  }
  return report;
}

}  // namespace psring
