// What is measured between machines, figures that other machines sent, and the slowest node or link.
#include "experiments/machine/network_report.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace psring {
namespace {

using Kind = ProbePhase::Kind;

TEST(ProbePhases, MeasureEveryPairInBothDirectionsOneAtATime) {
  for (int nodes = 2; nodes <= 9; ++nodes) {
    SCOPED_TRACE(nodes);
    std::multiset<std::pair<int, int>> rates, latencies;
    int into = 0, at_once = 0;
    for (const ProbePhase& phase : ProbePhases(nodes, ProbeScope::kAllPairs)) {
      into += phase.kind == Kind::kInto;
      at_once += phase.kind == Kind::kAllAtOnce;
      if (phase.kind != Kind::kRate && phase.kind != Kind::kLatency) continue;
      std::set<int> busy;
      for (const ProbeFlow& flow : phase.flows) {
        EXPECT_TRUE(busy.insert(flow.from).second && busy.insert(flow.to).second);
        (phase.kind == Kind::kRate ? rates : latencies).insert({flow.from, flow.to});
      }
    }
    // Twice each.
    EXPECT_EQ(rates.size(), static_cast<size_t>(2 * nodes * (nodes - 1)));
    EXPECT_EQ(latencies.size(), static_cast<size_t>(nodes * (nodes - 1)));
    for (int from = 0; from < nodes; ++from) {
      for (int to = 0; to < nodes; ++to) EXPECT_EQ(rates.count({from, to}), from == to ? 0u : 2u);
    }
    EXPECT_EQ(into, nodes > 2 ? nodes : 0);
    EXPECT_EQ(at_once, 1);
  }
}

// A figure for every flow: 1000 from + to, or a latency of that many us.
NetworkReport Numbered(int nodes, ProbeScope scope) {
  const std::vector<ProbePhase> phases = ProbePhases(nodes, scope);
  std::vector<std::vector<double>> results;
  for (const ProbePhase& phase : phases) {
    std::vector<double>& figures = results.emplace_back();
    for (const ProbeFlow& flow : phase.flows) figures.push_back(1000.0 * flow.from + flow.to + 1);
  }
  return ReportOf(nodes, phases, results);
}

TEST(NetworkReport, PutsEachFigureInItsPlace) {
  const NetworkReport all = Numbered(3, ProbeScope::kAllPairs);
  EXPECT_TRUE(all.all_pairs());
  EXPECT_EQ(all.rate(1, 2), 1003);
  EXPECT_EQ(all.rate(2, 1), 2002);
  EXPECT_EQ(all.latency(0, 2), all.latency(2, 0));
  EXPECT_EQ(all.into, (std::vector<double>{3002, 2004, 1006}));  // the sums of two senders
  EXPECT_EQ(all.ring, (std::vector<double>{2, 1003, 2001}));
  const NetworkReport some = Numbered(4, ProbeScope::kNeighbours);
  EXPECT_FALSE(some.all_pairs());
  EXPECT_TRUE(some.into.empty());
  EXPECT_EQ(some.rate(3, 0), 3001);
  EXPECT_EQ(some.rate(0, 2), 0);
}

TEST(NetworkReport, TakesTheBetterOfTwoFigures) {
  const std::vector<ProbeFlow> flows = {{0, 1}};
  const ProbePhase latency{.kind = Kind::kLatency, .flows = flows}, rate{.flows = flows};
  const NetworkReport report = ReportOf(2, {latency, rate, latency, rate}, {{3e-5}, {5e6}, {2e-5}, {4e6}});
  EXPECT_EQ(report.latency(0, 1), 2e-5);
  EXPECT_EQ(report.latency(1, 0), 2e-5);
  EXPECT_EQ(report.rate(0, 1), 5e6);
  EXPECT_EQ(report.rate(1, 0), 0);
}

TEST(FiguresOf, AcceptsEachFlowOnlyFromTheNodeThatMeasuresIt) {
  const ProbePhase rates{.what = "the rate", .flows = {{0, 1}, {2, 0}}};
  EXPECT_EQ(FiguresOf(rates, {"1=5e6", "0=1.5e9", ""}).value(), (std::vector<double>{1.5e9, 5e6}));
  const ProbePhase latency{.kind = Kind::kLatency, .what = "the latency", .flows = {{0, 1}}};
  EXPECT_TRUE(FiguresOf(latency, {"0=1e-5", ""}).ok());
  EXPECT_FALSE(FiguresOf(latency, {"", "0=1e-5"}).ok());
  const auto why = [&](const std::string& by_1) {
    return std::string(FiguresOf(rates, {"1=5", by_1, ""}).status().message());
  };
  for (const char* wrong : {"1=5", "2=5", "-1=5", "99999999999999999999=5", "0=0", "0=-1", "0=nan", "0=inf",
                            "0=1e99", "0", "=", "0=5=5", "x=5", "0=\x1b[2J", "0=5 0"}) {
    EXPECT_EQ(why(wrong), "node 1 sent no figure of the rate") << wrong;
  }
  EXPECT_EQ(why(""), "no figure of the rate from node 0 to node 1");
}

// All links have the rate 100 and the latency 10 us.
NetworkReport Even(int nodes) {
  NetworkReport network{.nodes = nodes};
  network.latency_s.assign(static_cast<size_t>(nodes * nodes), 1e-5);
  network.bytes_per_s.assign(static_cast<size_t>(nodes * nodes), 100);
  for (int node = 0; node < nodes; ++node) {
    network.latency_s[static_cast<size_t>(node * nodes + node)] = 0;
    network.bytes_per_s[static_cast<size_t>(node * nodes + node)] = 0;
  }
  return network;
}

TEST(SlowestLink, NamesANodeWhoseLinkHasHalfTheRate) {
  for (int nodes = 3; nodes <= 8; ++nodes) {
    for (int slow = 0; slow < nodes; ++slow) {
      NetworkReport network = Even(nodes);
      for (int other = 0; other < nodes; ++other) {
        if (other == slow) continue;
        network.bytes_per_s[static_cast<size_t>(slow * nodes + other)] = 50;
        network.bytes_per_s[static_cast<size_t>(other * nodes + slow)] = 48;
      }
      const SlowestLink slowest = SlowestOf(network);
      EXPECT_TRUE(slowest.node() && slowest.slow && slowest.sends && slowest.receives) << nodes << slow;
      EXPECT_EQ(slowest.from, slow);
      EXPECT_EQ(slowest.bytes_per_s, 48);
      EXPECT_EQ(slowest.others_bytes_per_s, 100);
    }
  }
}

TEST(SlowestLink, TellsADirectionAndALinkFromANode) {
  NetworkReport one_way = Even(3);
  one_way.bytes_per_s[1 * 3 + 0] = one_way.bytes_per_s[1 * 3 + 2] = 60;
  SlowestLink slowest = SlowestOf(one_way);
  EXPECT_TRUE(slowest.node() && slowest.sends && !slowest.receives);
  EXPECT_EQ(slowest.from, 1);

  NetworkReport link = Even(4);
  link.bytes_per_s[3 * 4 + 1] = 40;
  slowest = SlowestOf(link);
  EXPECT_TRUE(slowest.kind == SlowestLink::Kind::kLink && slowest.slow);
  EXPECT_EQ(std::pair(slowest.from, slowest.to), std::pair(3, 1));
}

TEST(SlowestLink, OfSimilarOnesIsNotSlow) {
  NetworkReport network = Even(3);
  network.bytes_per_s[1] = 90;
  const SlowestLink slowest = SlowestOf(network);
  EXPECT_TRUE(slowest.kind == SlowestLink::Kind::kLink && !slowest.slow);
  EXPECT_EQ(std::pair(slowest.from, slowest.to), std::pair(0, 1));
  EXPECT_EQ(SlowestOf({}).kind, SlowestLink::Kind::kNone);
}

TEST(SlowestLink, ComparesLatenciesIfNoRateDiffers) {
  NetworkReport network = Even(3);
  for (const size_t i : {2u, 5u, 6u, 7u}) network.latency_s[i] = 2e-3;
  SlowestLink slowest = SlowestOf(network);
  EXPECT_TRUE(slowest.node() && slowest.by_latency && slowest.slow);
  EXPECT_EQ(slowest.from, 2);
  network = Even(4);
  network.latency_s[1 * 4 + 2] = network.latency_s[2 * 4 + 1] = 5e-3;
  slowest = SlowestOf(network);
  EXPECT_TRUE(slowest.kind == SlowestLink::Kind::kLink && slowest.by_latency);
  EXPECT_EQ(std::pair(slowest.from, slowest.to), std::pair(1, 2));
}

}  // namespace
}  // namespace psring
