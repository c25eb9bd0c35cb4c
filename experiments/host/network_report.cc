#include "experiments/host/network_report.h"

namespace psring {
namespace {

constexpr double kLatencySeconds = 0.1;
constexpr double kWarmup = 0.1, kSeconds = 0.3;
// When several senders share a link, TCP's slow start overfills a switch's queue, and segments are sent again
// for up to about 0.5 s. Measuring begins after that.
constexpr double kSharedWarmup = 0.5, kSharedSeconds = 0.7;

// Each node to the next one, in rounds without a common node.
std::vector<std::vector<ProbeFlow>> NeighbourRounds(int nodes) {
  std::vector<std::vector<ProbeFlow>> rounds(nodes == 2 ? 2 : 2 + nodes % 2);
  for (int node = 0; node < nodes; ++node) {
    const bool last = nodes > 2 && nodes % 2 == 1 && node == nodes - 1;
    rounds[last ? 2 : static_cast<size_t>(node % 2)].push_back({node, (node + 1) % nodes});
  }
  return rounds;
}

}  // namespace

std::vector<ProbePhase> ProbePhases(int nodes) {
  std::vector<ProbePhase> phases;
  for (const auto& flows : NeighbourRounds(nodes)) {
    phases.push_back({.kind = ProbePhase::Kind::kLatency,
                      .what = "the latency",
                      .seconds = kLatencySeconds,
                      .flows = flows});
    phases.push_back({.what = "the rate", .warmup_s = kWarmup, .seconds = kSeconds, .flows = flows});
  }
  ProbePhase ring{
      .what = "the rate of all nodes at once", .warmup_s = kSharedWarmup, .seconds = kSharedSeconds};
  for (int node = 0; node < nodes; ++node) ring.flows.push_back({node, (node + 1) % nodes});
  phases.push_back(ring);
  return phases;
}

NetworkReport ReportOf(int nodes, const std::vector<std::vector<double>>& results) {
  const auto size = static_cast<size_t>(nodes);
  NetworkReport report{.nodes = nodes, .latency_s = std::vector<double>(size * size)};
  report.bytes_per_s = report.latency_s;
  report.ring.resize(size);
  const std::vector<ProbePhase> phases = ProbePhases(nodes);
  for (size_t k = 0; k < phases.size() && k < results.size(); ++k) {
    for (size_t i = 0; i < phases[k].flows.size() && i < results[k].size(); ++i) {
      const auto from = static_cast<size_t>(phases[k].flows[i].from);
      const auto to = static_cast<size_t>(phases[k].flows[i].to);
      const double figure = results[k][i];
      if (k + 1 == phases.size()) {
        report.ring[from] = figure;
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
