#include "experiments/machine/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "experiments/machine/connections.h"
#include "experiments/machine/network_report.h"

namespace psring {
namespace {

using testing::Contains;
using testing::Not;
using Kind = ProbePhase::Kind;

constexpr char kStat[] =
    "cpu  300 0 0 900 0 0 0 0 0 0\n"
    "cpu0 100 10 20 500 30 1 2 3 0 0\n"
    "cpu1 200 0 0 400 0 0 0 0 0 0\n"
    "intr 12345\n";

TEST(Machine, BusyExcludesIdleIoWaitAndInterrupts) {
  EXPECT_DOUBLE_EQ(BusySeconds(kStat, {0}, 100), 1.33);
  EXPECT_DOUBLE_EQ(BusySeconds(kStat, {0, 1}, 100), 3.33);
  EXPECT_DOUBLE_EQ(BusySeconds("", {0}, 100), 0);
}

TEST(Machine, IsDescribed) {
  const Machine machine = DescribeMachine();
  EXPECT_GE(machine.cores, 1);
  EXPECT_GT(machine.memory_mb, 0);
  EXPECT_FALSE(machine.kernel.empty());
}

constexpr char kCpuInfo[] =
    "processor\t: 0\n"
    "cpu family\t: 26\n"
    "model\t\t: 17\n"
    "model name\t: AMD EPYC\n"
    "stepping\t: 0\n"
    "flags\t\t: fpu amx_tile avx512_bf16 avx512f sse fma avx2 avx512_vnni amx_int8 avx512_vnnix\n"
    "\n"
    "processor\t: 1\n"
    "model\t\t: 1\n"
    "flags\t\t: fpu\n";

TEST(Processor, IsTheFirstOfCpuInfoAndListsTheSetsThatMatter) {
  const Processor processor = ParseProcessor(kCpuInfo);
  EXPECT_EQ(processor.instruction_sets, "avx2 fma avx512f avx512_bf16 avx512_vnni amx_tile amx_int8");
  EXPECT_EQ(ProcessorText(processor),
            "AMD EPYC (family 26, model 17, stepping 0; avx2 fma avx512f avx512_bf16 avx512_vnni amx_tile "
            "amx_int8)");
}

TEST(Processor, WithoutFamilyOrInstructionSetsIsOnlyNamed) {
  EXPECT_EQ(ProcessorText(ParseProcessor("model name: Neoverse-N1\nFeatures: asimd\n")), "Neoverse-N1");
  EXPECT_EQ(ProcessorText(ParseProcessor("")), "");
}

TEST(Machine, OurOwnWorkIsNotForeign) {
  const ForeignCpu foreign;
  volatile double sum = 0;
  for (int i = 0; i < 50'000'000; ++i) sum = sum + i;
  const double percent = foreign.Percent();
  EXPECT_GE(percent, 0);
  EXPECT_LE(percent, 100);
}

TEST(Calibrate, MeasuresTheLoopback) {
  const auto wires = CalibrateLoopback(2, absl::Milliseconds(200)).value();
  EXPECT_GT(wires.latency_s, 1e-7);
  EXPECT_LT(wires.latency_s, 0.1);
  EXPECT_GT(wires.bytes_per_s, 1e6);
  EXPECT_GE(wires.medium_bytes_per_s, 1e6);
  EXPECT_GT(wires.add_s_per_byte, 0);
}

TEST(OtherRuns, AreReadFromTheNamesOfSockets) {
  const std::string line = "0000000000000000: 00000002 00000000 00000000 0002 01 123 ";
  const std::string text = absl::StrCat("Num       RefCount Protocol Flags    Type St Inode Path\n", line,
                                        "@psring-measures-77.0\n", line, "@psring-measures-9.0\n", line,
                                        "@psring-measures-9.1\n", line, "@psring-measures-5.0\n", line,
                                        "@psring-measures-x.0\n", line, "@psring-measures-99999999999.0\n",
                                        line, "/run/psring-measures-3.0\n", line, "@other\n", line, "\n");
  EXPECT_EQ(MeasuringProcesses(text, "psring-measures-5.0"), (std::vector<int>{9, 77}));
  EXPECT_EQ(MeasuringProcesses(text, "psring-measures-9.0"), (std::vector<int>{5, 9, 77}));
  EXPECT_EQ(MeasuringProcesses("", "psring-measures-5.0"), std::vector<int>());
}

// A process that measures until it is killed.
class Measuring {
 public:
  Measuring() {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid_ = fork();
    if (pid_ == 0) {
      const MeasuringNow measuring;
      if (write(ready[1], "x", 1) == 1) pause();
      _exit(1);
    }
    char byte = 0;
    close(ready[1]);
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
  }
  ~Measuring() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  int pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

TEST(OtherRuns, AreFoundWhileTheyMeasureAndNotAfterTheyWereKilled) {
  const MeasuringNow own;
  EXPECT_THAT(own.Others(), Not(Contains(getpid())));
  Measuring other;
  const int pid = other.pid();
  EXPECT_THAT(own.Others(), Contains(pid));
  other.Kill();
  EXPECT_THAT(own.Others(), Not(Contains(pid)));
}

TEST(OtherRuns, ANamesakeOfAnotherContainerIsAnother) {
  const MeasuringNow own;
  const MeasuringNow namesake;  // as if it had our process ID in a namespace of its own
  EXPECT_THAT(own.Others(), Contains(getpid()));
  EXPECT_THAT(namesake.Others(), Contains(getpid()));
}

// Measuring a connection whose other end follows the protocol, and one that never ends.

constexpr double kSeconds = 0.05, kTimeout = 20;

class LinkEnds : public ::testing::Test {
 protected:
  void SetUp() override {
    auto sockets = ConnectOverLoopback().value();
    sockets_ = std::move(sockets);
  }
  int near() const { return sockets_.near.get(); }
  int far() const { return sockets_.far.get(); }
  static bool TookTooLong(const absl::Status& status) {
    return absl::IsDeadlineExceeded(status) && absl::StrContains(status.message(), "has not finished after");
  }

 private:
  SocketPair sockets_;
};

TEST_F(LinkEnds, LatencyAndRateAreMeasuredOverOneConnection) {
  std::thread other([this] {
    EXPECT_TRUE(EchoUntilDone(far(), kTimeout).ok());
    EXPECT_TRUE(SendFor(far(), 2 * kSeconds, kTimeout).ok());
  });
  const auto latency = MeasureLatencyTo(near(), kSeconds, kTimeout);
  const auto rate = ReceiveRate(near(), kSeconds, kSeconds, kTimeout);
  other.join();
  ASSERT_TRUE(latency.ok() && rate.ok()) << latency.status() << rate.status();
  EXPECT_GT(*latency, 0);
  EXPECT_GT(*rate, 0);
}

TEST_F(LinkEnds, AnEndThatNeverStopsSendingIsAnError) {
  std::thread other([this] {
    const std::vector<char> more(4096, 0);
    while (send(far(), more.data(), more.size(), MSG_NOSIGNAL) > 0) {
    }
  });
  const auto rate = ReceiveRate(near(), kSeconds, kSeconds, 0.2);
  shutdown(near(), SHUT_RDWR);
  other.join();
  EXPECT_TRUE(TookTooLong(rate.status())) << rate.status();
}

TEST_F(LinkEnds, AnEndThatNeverStopsAskingIsAnError) {
  std::thread other([this] {
    std::array<char, 4> message{};
    while (send(far(), message.data(), message.size(), MSG_NOSIGNAL) > 0 &&
           recv(far(), message.data(), message.size(), MSG_WAITALL) > 0) {
    }
  });
  const absl::Status status = EchoUntilDone(near(), 0.2);
  shutdown(near(), SHUT_RDWR);
  other.join();
  EXPECT_TRUE(TookTooLong(status)) << status;
}

TEST_F(LinkEnds, AnEndThatTakesDataTooSlowlyIsAnError) {
  std::atomic<bool> ended = false;  // it need not take the rest
  std::thread other([&] {
    char one = 0;
    while (!ended && recv(far(), &one, 1, 0) > 0) {
    }
  });
  const absl::Status status = SendFor(near(), /*seconds=*/1000, 0.2);
  ended = true;
  shutdown(near(), SHUT_RDWR);
  other.join();
  EXPECT_TRUE(TookTooLong(status)) << status;
}

// What is measured between machines, figures that other machines sent, and the slowest node or link.

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
