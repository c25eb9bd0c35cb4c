#include "experiments/virtual_cluster/virtual_cluster.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/text/translate.h"
#include "experiments/machine/connections.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

TEST(Link, LatencyNeedsAUnit) {
  EXPECT_DOUBLE_EQ(*ParseLatency("0.5ms"), 0.0005);
  EXPECT_DOUBLE_EQ(*ParseLatency("100us"), 0.0001);
  EXPECT_DOUBLE_EQ(*ParseLatency("0"), 0);
  for (const char* text : {"", "1", "ms", "-1ms", "11s", "inf", "soon"})
    EXPECT_EQ(ParseLatency(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
}

TEST(Link, RejectsShapingThatContradictsTheLink) {
  EXPECT_TRUE(CheckLink({}).ok());
  EXPECT_TRUE(CheckLink({.bits_per_s = 1e9, .shaping = "netns"}).ok());
  EXPECT_TRUE(CheckLink({.latency_s = 1e-3}).ok());
  EXPECT_FALSE(CheckLink({.bits_per_s = 1e9, .shaping = "none"}).ok());
  EXPECT_FALSE(CheckLink({.shaping = "netns"}).ok());
  EXPECT_FALSE(CheckLink({.shaping = "userspace"}).ok());
}

TEST(Link, NamesTheFirstMeasurementBelowTheRate) {
  LinkReport report{
      .shaping = Shaping::kNetns, .bits_per_s = 1e9, .links = {9.5e8, 9.4e8}, .ring = 9.4e8, .incast = 9.5e8};
  EXPECT_EQ(WhyNotCarried(report), "");
  report.incast = 8.93e8;  // windows of several senders vary
  EXPECT_EQ(WhyNotCarried(report), "");
  report.links[1] = 8.4e8;
  EXPECT_EQ(WhyNotCarried(report), "the link of node 1 carried 840 of 1000 Mbit/s");
  report.links[1] = 9.5e8;
  report.ring = 8.4e8;
  EXPECT_THAT(WhyNotCarried(report), Has("every node sends"));
  report.ring = 9.5e8;
  report.incast = 8.4e8;
  EXPECT_THAT(WhyNotCarried(report), Has("into one node"));
}

TEST(Preflight, ChoosesTheFastestRateThatLeavesHeadroom) {
  for (const auto& [capacity, rate] : {std::pair(5e9, 1e9),
                                       {1.5e9, 1e9},
                                       {1.49e9, 500e6},
                                       {400e6, 250e6},
                                       {160e6, 100e6},
                                       {140e6, 50e6},
                                       {38e6, 25e6}}) {
    EXPECT_EQ(RatesToTry(capacity, 1e9).front(), rate) << capacity;
  }
  EXPECT_TRUE(RatesToTry(37e6, 1e9).empty());
  EXPECT_EQ(RatesToTry(5e9, 300e6).front(), 250e6);
}

TEST(Preflight, RepeatsAMeasurementBeforeItLowersTheRate) {
  EXPECT_EQ(RatesToTry(400e6, 1e9), (std::vector<double>{250e6, 250e6, 250e6, 100e6, 50e6, 25e6}));
}

TEST(Preflight, SuggestsARateBelowTheOneThatFellShort) {
  // A busy host: fast without a limit, but 200 Mbit/s links carried only 156 Mbit/s.
  const LinkReport report{.shaping = Shaping::kNetns,
                          .bits_per_s = 200e6,
                          .links = {190e6, 191e6},
                          .ring = 156e6,
                          .incast = 180e6};
  EXPECT_EQ(LeastCarried(report), 156e6);
  EXPECT_EQ(LinkAdvice({.bits_per_s = 200e6}, 5e9, LeastCarried(report), 2),
            "use --link 100mbit, --scale 2 with a replayed --workload (results are simulated), or simulate "
            "the network with psring predict");
  EXPECT_EQ(LinkAdvice({.bits_per_s = 200e6}, 5e9, 80e6, 4),
            "use --link 50mbit, fewer workers, --scale 5 with a replayed --workload (results are simulated), "
            "or simulate the network with psring predict");
  // No rate was tried: links without a limit carry less than was requested.
  using testing::StartsWith;
  EXPECT_THAT(LinkAdvice({.bits_per_s = 1e9}, 800e6, 1e9, 2), StartsWith("use --link 500mbit, --scale 2"));
  EXPECT_THAT(LinkAdvice({.bits_per_s = 10e9}, 3.8e9, 10e9, 2),
              StartsWith("use --link 2.5gbit, --scale 5 with"));
}

TEST(Preflight, WhatItSuggestsLeavesHeadroom) {
  for (double capacity = 20e6; capacity < 200e9; capacity *= 1.7) {
    for (const double asked : {100e6, 1e9, 10e9, 100e9}) {
      const std::string advice = LinkAdvice({.bits_per_s = asked}, capacity, asked, 4);
      SCOPED_TRACE(absl::StrCat(capacity, " ", asked, ": ", advice));
      const auto after = [&](const std::string& words) {
        const size_t at = advice.find(words);
        const std::string rest = at == std::string::npos ? "" : advice.substr(at + words.size());
        return rest.substr(0, rest.find_first_of(", "));
      };
      const auto rate = ParseLink(after("--link ")).value();
      EXPECT_LE(rate * kHeadroom, capacity);
      EXPECT_LE(rate, asked);
      if (asked * kHeadroom > 1000 * capacity) continue;  // no scale is large enough
      double scale = 0;
      ASSERT_TRUE(absl::SimpleAtod(after("--scale "), &scale));
      EXPECT_LE(asked / scale * kHeadroom, capacity);
    }
  }
}

TEST(Link, ASlowedLinkStandsForAFasterOne) {
  LinkReport built{.shaping = Shaping::kNetns, .bits_per_s = 1e9, .latency_s = 1e-3, .ring = 0.95e9};
  const LinkReport nominal = Nominal(built, 10);
  EXPECT_EQ(nominal.bits_per_s, 10e9);
  EXPECT_EQ(nominal.latency_s, 1e-4);
  EXPECT_EQ(nominal.ring, 0.95e9) << "as measured";
  EXPECT_THAT(DescribeLink(nominal), Has("10 Gbit/s links", "at 1/10 of the speed"));
}

TEST(Link, IsDescribedInWords) {
  LinkReport link{.shaping = Shaping::kNetns, .bits_per_s = 1e9, .congestion_control = "reno"};
  EXPECT_EQ(DescribeLink(link), "1 Gbit/s links between network namespaces of this machine (TCP reno)");
  EXPECT_EQ(InLanguage(Language::kChinese, [&] { return DescribeLink(link); }),
            "1 Gbit/s 链路，在本机的网络命名空间之间 (TCP reno)");
  EXPECT_EQ(NameLink(link), "1 Gbit/s links");
  link = {.shaping = Shaping::kUserspace, .bits_per_s = 100e6, .latency_s = 2e-3};
  EXPECT_EQ(DescribeLink(link),
            "100 Mbit/s links with 2 ms of latency, limited by psring's own transports on this machine");
  EXPECT_EQ(NameLink(link), "100 Mbit/s links with 2 ms of latency");
  EXPECT_EQ(DescribeLink({}), "this machine's loopback");
}

TEST(Link, TheBurstIsAboutAMillisecondOfTheRate) {
  EXPECT_EQ(BurstBytes(1e9), 128 << 10);
  EXPECT_NEAR(static_cast<double>(BurstBytes(1e10)), 10 * (128 << 10), 16);
  EXPECT_EQ(BurstBytes(1e6), 16 << 10);
  EXPECT_EQ(LargestPacketBytes(1e9), 64 << 10);
  for (const double rate : {1e6, 1e8, 2e8, 2.5e8, 5e8})
    EXPECT_LT(LargestPacketBytes(rate), BurstBytes(rate)) << rate;
}

TEST(Link, AServersNodeIsRank0sItsWorkersOrAfterTheWorkers) {
  Configuration configuration = TestConfiguration("ps-sync", 3);
  EXPECT_EQ(NodeOfServer(configuration, 0), 0);
  EXPECT_EQ(NodesOf(configuration), 3);
  configuration.training.server_placement = "dedicated";
  EXPECT_EQ(NodeOfServer(configuration, 0), 3);
  EXPECT_EQ(NodesOf(configuration), 4);
  EXPECT_EQ(NodesOf(TestConfiguration("ring", 5)), 5);
  configuration = TestConfiguration("ps-sync", 6);
  configuration.training.ranks_per_process = 2;
  EXPECT_EQ(NodesOf(configuration), 3);
  configuration.training.server_placement = "dedicated";
  EXPECT_EQ(NodeOfServer(configuration, 0), 3);
  EXPECT_EQ(NodesOf(configuration), 4);
  configuration.training.server_placement = "colocated";
  EXPECT_EQ(NodeOfServer(configuration, 5), 2);
  EXPECT_EQ(NodesOf(configuration), 3);
}

TEST(LinkCounters, AreFoundByName) {
  const std::string snmp =
      "Ip: Forwarding InReceives\nIp: 1 9\n"
      "Tcp: RtoAlgorithm OutSegs RetransSegs\nTcp: 1 1200 34\n";
  EXPECT_EQ(*NetworkCounterOf(snmp, "Tcp", "RetransSegs"), 34);
  EXPECT_EQ(*NetworkCounterOf(snmp, "Ip", "InReceives"), 9);
  EXPECT_FALSE(NetworkCounterOf(snmp, "Tcp", "InReceives").ok());
  EXPECT_FALSE(NetworkCounterOf(snmp, "TcpExt", "TCPTimeouts").ok());
  EXPECT_FALSE(NetworkCounterOf("Tcp: RetransSegs\n", "Tcp", "RetransSegs").ok());
}

TEST(LinkCounters, DropsAreOfTheRootQueue) {
  const std::string tc =
      "qdisc tbf 1: dev psring-p0 root refcnt 5 rate 1Gbit\n"
      " Sent 900 bytes 7 pkt (dropped 5, overlimits 3 requeues 0) \n backlog 0b 0p requeues 0\n"
      "qdisc bfifo 8001: dev psring-p0 parent 2:1 limit 2000000b\n"
      " Sent 900 bytes 7 pkt (dropped 9, overlimits 0 requeues 0) \n"
      "qdisc tbf 1: dev psring-p1 root refcnt 5\n Sent 0 bytes 0 pkt (dropped 0, overlimits 0 requeues 0)\n";
  EXPECT_EQ(*QueueDropsOf(tc, "psring-p0"), 5);
  EXPECT_EQ(*QueueDropsOf(tc, "psring-p1"), 0);
  EXPECT_FALSE(QueueDropsOf(tc, "psring-p2").ok());
}

TEST(LinkCounters, RetransmissionTimeIsTheMaximumOverNodes) {
  const std::vector<NodeCounters> nodes = Difference({{110, 2, 7}, {40, 1, 0}}, {{10, 2, 3}, {0, 0, 0}});
  EXPECT_EQ(nodes[0].retransmitted_segments, 100);
  EXPECT_EQ(nodes[0].queue_drops, 4);
  // 100 segments of 1448 bytes at 1 Gbit/s; 40 segments and a time-out of 200 ms.
  EXPECT_DOUBLE_EQ(RetransmissionMs({nodes[0]}, 1e9), 1.1584);
  EXPECT_DOUBLE_EQ(RetransmissionMs(nodes, 1e9), 40 * 1448 * 8 / 1e6 + 200);
  EXPECT_DOUBLE_EQ(RetransmissionMs({}, 1e9), 0);
}

// Real namespaces, if this host allows them.
class NamespacesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoNamespaces(interrupt_); !why.empty()) GTEST_SKIP() << why;
  }

  std::unique_ptr<VirtualCluster> Make(double bits_per_s, int nodes) {
    return VirtualCluster::Create({.bits_per_s = bits_per_s}, Shaping::kNetns, nodes, interrupt_).value();
  }

  Interrupt interrupt_;
};

std::set<std::string> HostInterfaces() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/net"))
    names.insert(entry.path().filename());
  return names;
}

TEST_F(NamespacesTest, LinksRingAndIncastKeepTheRate) {
  std::vector<double> best(5, 0);
  // Other programs that use the processors slow links down, but not always.
  for (int tries = 0; tries < 3 && std::ranges::min(best) < 0.8e8; ++tries) {
    const auto cluster = Make(1e8, 3);
    const auto wires = cluster->Measure(/*capacity=*/0).value();
    EXPECT_EQ(wires.burst_bytes, 16 << 10);
    EXPECT_LT(wires.latency_s, 0.01);
    std::vector<double> rates = cluster->report().links;
    ASSERT_EQ(rates.size(), 3);
    rates.push_back(cluster->report().ring);
    rates.push_back(cluster->report().incast);  // two senders, one link
    for (size_t i = 0; i < rates.size(); ++i) {
      EXPECT_LT(rates[i], 1.03e8) << "bytes that were queued before the measured window add to a rate";
      best[i] = std::max(best[i], rates[i]);
    }
  }
  EXPECT_GT(std::ranges::min(best), 0.8e8);
}

// No host carries 10 Tbit/s; every host that runs these tests carries 100 Mbit/s.
TEST_F(NamespacesTest, BuildsOnlyLinksThatThisHostCarries) {
  EXPECT_THAT(
      BuildCarriedCluster({.bits_per_s = 1e13}, /*may_lower=*/false, Shaping::kNetns, 2, interrupt_).status(),
      Fails(absl::StatusCode::kFailedPrecondition, "cannot carry 10 Tbit/s links", "use --link "));

  const auto lowered =
      BuildCarriedCluster({.bits_per_s = 1e13}, /*may_lower=*/true, Shaping::kNetns, 2, interrupt_).value();
  const LinkReport& report = lowered.cluster->report();
  EXPECT_LE(report.bits_per_s, 1e9);
  EXPECT_GE(report.capacity, kHeadroom * report.bits_per_s);
  EXPECT_EQ(WhyNotCarried(report), "");
  EXPECT_THAT(lowered.why_lower, Has(" instead of 10 Tbit/s: this machine carries "));
}

TEST_F(NamespacesTest, TheHostsOwnNetworkIsNotTouched) {
  const std::set<std::string> before = HostInterfaces();
  const auto cluster = Make(1e9, 2);
  EXPECT_EQ(HostInterfaces(), before);
  // The nodes' addresses do not exist on the host.
  FileDescriptor here(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      there(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_FALSE(ConnectSockets(std::move(here), std::move(there), Namespaces::Address(0).c_str()).ok());
}

TEST_F(NamespacesTest, AChildRunsOnItsNode) {
  const auto cluster = Make(1e9, 2);
  ChildSpec child{.name = "cat", .command = {"/bin/cat", "/proc/self/net/fib_trie"}};
  cluster->Place(1, child);
  std::string seen;
  const LaunchSpec spec{.what = "cat", .children = {child}, .on_line = [&seen](int, const std::string& line) {
                          seen += line;
                          return true;
                        }};
  ASSERT_TRUE(RunChildren(spec, interrupt_).ok());
  EXPECT_THAT(seen, testing::AllOf(Has(Namespaces::Address(1)), Lacks(Namespaces::Address(0))));
}

}  // namespace
}  // namespace psring
