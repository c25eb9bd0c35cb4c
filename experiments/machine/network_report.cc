#include "experiments/machine/network_report.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/errors.h"
#include "experiments/stats/statistics.h"

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
      rounds[round].push_back({std::min(one, other), std::max(one, other)});
    };
    add(round, places - 1);
    for (int k = 1; k < places / 2; ++k) add((round + k) % turning, (round + turning - k) % turning);
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

// A latency is much higher above this multiple of the others' median, plus the noise of a scheduler.
constexpr double kMuchLater = 3;
constexpr double kLatencyNoiseS = 100e-6;

// The median of all values but one.
double Others(std::vector<double> values, size_t but) {
  values.erase(values.begin() + static_cast<ptrdiff_t>(but));
  return values.empty() ? 0 : Quantile(std::move(values), 0.5);
}

// The best figure of each node's links in one direction, by `figure(node, other)`.
std::vector<double> BestOfEach(int nodes, const std::function<double(int node, int other)>& figure,
                               bool most) {
  std::vector<double> best;
  for (int node = 0; node < nodes; ++node) {
    double value = most ? 0 : std::numeric_limits<double>::max();
    for (int other = 0; other < nodes; ++other) {
      if (other == node) continue;
      value = most ? std::max(value, figure(node, other)) : std::min(value, figure(node, other));
    }
    best.push_back(value);
  }
  return best;
}

struct Link {
  int from, to;
  double figure;
};

std::vector<Link> LinksOf(const NetworkReport& network, bool latencies) {
  std::vector<Link> links;
  for (int from = 0; from < network.nodes; ++from) {
    for (int to = 0; to < network.nodes; ++to) {
      const double figure = latencies ? network.latency(from, to) : network.rate(from, to);
      if (from != to && figure > 0) links.push_back({from, to, figure});
    }
  }
  return links;
}

std::vector<double> FiguresOfLinks(const std::vector<Link>& links) {
  std::vector<double> figures;
  for (const Link& link : links) figures.push_back(link.figure);
  return figures;
}

// The slowest of the slow nodes by rate; not `slow` if there is none.
SlowestLink SlowNode(const NetworkReport& network) {
  SlowestLink slowest;
  if (network.nodes < 3) return slowest;
  const std::vector<double> sent = BestOfEach(
      network.nodes, [&](int node, int other) { return network.rate(node, other); }, /*most=*/true);
  const std::vector<double> received = BestOfEach(
      network.nodes, [&](int node, int other) { return network.rate(other, node); }, /*most=*/true);
  double least = kMuchSlower;
  for (int node = 0; node < network.nodes; ++node) {
    const auto i = static_cast<size_t>(node);
    const double others_send = Others(sent, i), others_receive = Others(received, i);
    if (!(others_send > 0) || !(others_receive > 0)) continue;
    const double sends = sent[i] / others_send, receives = received[i] / others_receive;
    if (std::min(sends, receives) >= least) continue;
    least = std::min(sends, receives);
    const bool sending = sends < receives;
    slowest = {.kind = SlowestLink::Kind::kNode,
               .slow = true,
               .sends = sends < kMuchSlower,
               .receives = receives < kMuchSlower,
               .from = node,
               .bytes_per_s = sending ? sent[i] : received[i],
               .others_bytes_per_s = sending ? others_send : others_receive};
  }
  return slowest;
}

// The link with the lowest rate.
SlowestLink SlowLink(const NetworkReport& network) {
  const std::vector<Link> links = LinksOf(network, /*latencies=*/false);
  if (links.empty()) return {};
  const auto least = std::ranges::min_element(links, [](auto& a, auto& b) { return a.figure < b.figure; });
  const double others = Others(FiguresOfLinks(links), static_cast<size_t>(least - links.begin()));
  return {.kind = SlowestLink::Kind::kLink,
          .slow = least->figure < kMuchSlower * others,
          .from = least->from,
          .to = least->to,
          .bytes_per_s = least->figure,
          .others_bytes_per_s = others};
}

bool MuchLater(double latency, double others) {
  return others > 0 && latency > kMuchLater * others && latency > others + kLatencyNoiseS;
}

// The node or link with the highest latency; kNone if it is not much higher.
SlowestLink LateOne(const NetworkReport& network) {
  if (network.nodes < 3) return {};
  const std::vector<double> best = BestOfEach(
      network.nodes, [&](int node, int other) { return network.latency(node, other); }, /*most=*/false);
  const auto worst = std::ranges::max_element(best);
  SlowestLink late{.slow = true, .by_latency = true, .latency_s = *worst};
  late.others_latency_s = Others(best, static_cast<size_t>(worst - best.begin()));
  if (MuchLater(late.latency_s, late.others_latency_s)) {
    late.kind = SlowestLink::Kind::kNode;
    late.from = worst - best.begin();
    return late;
  }
  const std::vector<Link> links = LinksOf(network, /*latencies=*/true);
  if (links.empty()) return {};
  const auto most = std::ranges::max_element(links, [](auto& a, auto& b) { return a.figure < b.figure; });
  late.latency_s = most->figure;
  late.others_latency_s = Quantile(FiguresOfLinks(links), 0.5);
  if (!MuchLater(late.latency_s, late.others_latency_s)) return {};
  late.kind = SlowestLink::Kind::kLink;
  late.from = most->from;
  late.to = most->to;
  return late;
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

bool NetworkReport::all_pairs() const { return std::ranges::count(bytes_per_s, 0.0) == nodes; }

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
        return InvalidArgument("node ", node, " sent no figure of ", phase.what);
      }
      figures[flow] = figure;
    }
  }
  const auto missing = std::ranges::find(figures, 0.0);
  if (missing == figures.end()) return figures;
  const ProbeFlow& flow = phase.flows[missing - figures.begin()];
  return InvalidArgument("no figure of ", phase.what, " from node ", flow.from, " to node ", flow.to);
}

SlowestLink SlowestOf(const NetworkReport& network) {
  if (const SlowestLink node = SlowNode(network); node.slow) return node;
  const SlowestLink link = SlowLink(network);
  if (link.slow) return link;
  const SlowestLink late = LateOne(network);
  return late.slow && late.kind != SlowestLink::Kind::kNone ? late : link;
}

}  // namespace psring
