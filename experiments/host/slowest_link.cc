#include "experiments/host/slowest_link.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "experiments/stats/statistics.h"

namespace psring {
namespace {

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
  const auto least =
      std::min_element(links.begin(), links.end(), [](auto& a, auto& b) { return a.figure < b.figure; });
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
  const auto worst = std::max_element(best.begin(), best.end());
  SlowestLink late{.slow = true, .by_latency = true, .latency_s = *worst};
  late.others_latency_s = Others(best, static_cast<size_t>(worst - best.begin()));
  if (MuchLater(late.latency_s, late.others_latency_s)) {
    late.kind = SlowestLink::Kind::kNode;
    late.from = static_cast<int>(worst - best.begin());
    return late;
  }
  const std::vector<Link> links = LinksOf(network, /*latencies=*/true);
  if (links.empty()) return {};
  const auto most =
      std::max_element(links.begin(), links.end(), [](auto& a, auto& b) { return a.figure < b.figure; });
  late.latency_s = most->figure;
  late.others_latency_s = Quantile(FiguresOfLinks(links), 0.5);
  if (!MuchLater(late.latency_s, late.others_latency_s)) return {};
  late.kind = SlowestLink::Kind::kLink;
  late.from = most->from;
  late.to = most->to;
  return late;
}

}  // namespace

SlowestLink SlowestOf(const NetworkReport& network) {
  if (const SlowestLink node = SlowNode(network); node.slow) return node;
  const SlowestLink link = SlowLink(network);
  if (link.slow) return link;
  const SlowestLink late = LateOne(network);
  return late.slow && late.kind != SlowestLink::Kind::kNone ? late : link;
}

}  // namespace psring
