#include "experiments/host/network_report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace psring {
namespace {

constexpr double kMaxFigure = 1e15;  // of another node, in s or bytes/s
// Other programs only slow a measurement down, so all pairs are measured again, and the better figure counts.
constexpr int kPasses = 2;
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

// Every pair once, in rounds without a common node (the circle method).
std::vector<std::vector<ProbeFlow>> PairRounds(int nodes) {
  const int places = nodes + nodes % 2, turning = places - 1;
  std::vector<std::vector<ProbeFlow>> rounds(static_cast<size_t>(turning));
  for (int round = 0; round < turning; ++round) {
    const auto add = [&](int one, int other) {
      if (std::max(one, other) >= nodes) return;  // of an odd number of nodes, one pauses
      rounds[static_cast<size_t>(round)].push_back({std::min(one, other), std::max(one, other)});
    };
    add(round, places - 1);
    for (int k = 1; k < places / 2; ++k) {
      add((round + k) % turning, (round + turning - k) % turning);
    }
  }
  return rounds;
}

std::vector<ProbeFlow> Reversed(std::vector<ProbeFlow> flows) {
  for (ProbeFlow& flow : flows) std::swap(flow.from, flow.to);
  return flows;
}

ProbePhase LatencyPhase(const std::vector<ProbeFlow>& flows) {
  return {
      .kind = ProbePhase::Kind::kLatency, .what = "the latency", .seconds = kLatencySeconds, .flows = flows};
}

ProbePhase RatePhase(const std::vector<ProbeFlow>& flows) {
  return {.what = "the rate", .warmup_s = kWarmup, .seconds = kSeconds, .flows = flows};
}

ProbePhase IntoPhase(int nodes, int node) {
  ProbePhase phase{.kind = ProbePhase::Kind::kInto,
                   .what = absl::StrCat("the rate of all nodes into node ", node),
                   .warmup_s = kSharedWarmup,
                   .seconds = kSharedSeconds};
  for (int from = 0; from < nodes; ++from) {
    if (from != node) phase.flows.push_back({from, node});
  }
  return phase;
}

ProbePhase AllAtOncePhase(int nodes) {
  ProbePhase phase{.kind = ProbePhase::Kind::kAllAtOnce,
                   .what = "the rate of all nodes at once",
                   .warmup_s = kSharedWarmup,
                   .seconds = kSharedSeconds};
  for (int node = 0; node < nodes; ++node) phase.flows.push_back({node, (node + 1) % nodes});
  return phase;
}

}  // namespace

std::vector<ProbePhase> ProbePhases(int nodes, ProbeScope scope) {
  std::vector<ProbePhase> phases;
  const bool all = scope == ProbeScope::kAllPairs;
  for (int pass = 0; pass < (all ? kPasses : 1); ++pass) {
    for (const auto& flows : all ? PairRounds(nodes) : NeighbourRounds(nodes)) {
      phases.push_back(LatencyPhase(flows));
      phases.push_back(RatePhase(flows));
      if (all) phases.push_back(RatePhase(Reversed(flows)));
    }
  }
  for (int node = 0; all && nodes > 2 && node < nodes; ++node) phases.push_back(IntoPhase(nodes, node));
  phases.push_back(AllAtOncePhase(nodes));
  return phases;
}

NetworkReport ReportOf(int nodes, const std::vector<ProbePhase>& phases,
                       const std::vector<std::vector<double>>& results) {
  const auto size = static_cast<size_t>(nodes);
  NetworkReport report{.nodes = nodes, .latency_s = std::vector<double>(size * size)};
  report.bytes_per_s = report.latency_s;
  report.ring.resize(size);
  for (size_t k = 0; k < phases.size() && k < results.size(); ++k) {
    for (size_t i = 0; i < phases[k].flows.size() && i < results[k].size(); ++i) {
      const auto from = static_cast<size_t>(phases[k].flows[i].from);
      const auto to = static_cast<size_t>(phases[k].flows[i].to);
      const double figure = results[k][i];
      double &latency = report.latency_s[from * size + to], &rate = report.bytes_per_s[from * size + to];
      switch (phases[k].kind) {
        case ProbePhase::Kind::kLatency:
          latency = latency > 0 ? std::min(latency, figure) : figure;
          report.latency_s[to * size + from] = latency;
          break;
        case ProbePhase::Kind::kRate:
          rate = std::max(rate, figure);
          break;
        case ProbePhase::Kind::kInto:
          report.into.resize(size);
          report.into[to] += figure;
          break;
        case ProbePhase::Kind::kAllAtOnce:
          report.ring[from] = figure;
          break;
      }
    }
  }
  return report;
}

bool NetworkReport::all_pairs() const {
  return std::count(bytes_per_s.begin(), bytes_per_s.end(), 0.0) == nodes;
}

double SlowestRate(const NetworkReport& network) {
  double slowest = 0;
  for (const double rate : network.bytes_per_s) {
    if (rate > 0 && (slowest <= 0 || rate < slowest)) slowest = rate;
  }
  return slowest;
}

int MeasuredBy(const ProbePhase& phase, const ProbeFlow& flow) {
  return phase.kind == ProbePhase::Kind::kLatency ? flow.from : flow.to;
}

absl::StatusOr<std::vector<double>> FiguresOf(const ProbePhase& phase, const std::vector<std::string>& sent) {
  std::vector<double> figures(phase.flows.size());
  for (size_t node = 0; node < sent.size(); ++node) {
    for (const absl::string_view word : absl::StrSplit(sent[node], ' ', absl::SkipEmpty())) {
      const std::pair<absl::string_view, absl::string_view> fields =
          absl::StrSplit(word, absl::MaxSplits('=', 1));
      size_t flow = 0;
      double figure = 0;
      if (!absl::SimpleAtoi(fields.first, &flow) || flow >= figures.size() ||
          MeasuredBy(phase, phase.flows[flow]) != static_cast<int>(node) ||
          !absl::SimpleAtod(fields.second, &figure) || !(figure > 0 && figure < kMaxFigure)) {
        return absl::InvalidArgumentError(absl::StrCat("node ", node, " sent no figure of ", phase.what));
      }
      figures[flow] = figure;
    }
  }
  const auto missing = std::find(figures.begin(), figures.end(), 0.0);
  if (missing == figures.end()) return figures;
  const ProbeFlow& flow = phase.flows[static_cast<size_t>(missing - figures.begin())];
  return absl::InvalidArgumentError(
      absl::StrCat("no figure of ", phase.what, " from node ", flow.from, " to node ", flow.to));
}

}  // namespace psring
