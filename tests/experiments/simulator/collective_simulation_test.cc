#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "experiments/simulator/collective.h"
#include "experiments/simulator/collective_plan.h"
#include "experiments/simulator/servers.h"
#include "ring_worker/schedules/lowered_schedule.h"
#include "tests/experiments/simulator/test_network.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {
namespace {

constexpr Pipelining kOneSlab{.segment_bytes = 1e18, .depth = 1};

std::unique_ptr<Schedule> AllReduce(const std::string& algorithm, int ranks, int ranks_per_node = 1) {
  return MakeSchedule(algorithm, Collective::kAllReduce, {.ranks = ranks, .ranks_per_node = ranks_per_node})
      .value();
}

double Seconds(const std::string& algorithm, int ranks, const Cluster& cluster, double bytes,
               const Pipelining& pipelining = kOneSlab) {
  const auto schedule = AllReduce(algorithm, ranks, ShapeOf(cluster, ranks).ranks_per_node);
  return SimulateCollective(*schedule, cluster, bytes, pipelining).value().seconds;
}

// Nodes of 8 ranks with one card each.
Cluster Nodes(double intra_bytes_per_s, double latency_s = 0) {
  Cluster cluster = TestNetwork(latency_s);
  cluster.gpus_per_node = 8;
  cluster.intra_bytes_per_s = intra_bytes_per_s;
  return cluster;
}

TEST(CollectiveSimulation, EqualsTheoryForEveryAlgorithmOnEqualLinks) {
  Cluster network = TestNetwork(1e-3);
  network.add_s_per_byte = 1e-10;
  const Wires wires{.latency_s = 1e-3, .bytes_per_s = 1e9, .add_s_per_byte = 1e-10};
  for (const std::string name : {"ring", "star", "direct", "halving-doubling"}) {
    for (int ranks : {1, 2, 3, 4, 5, 8, 16, 33}) {
      const double theory =
          ExchangeSeconds({.scheme = Scheme::AllReduce(name), .workers = ranks}, 1e8, wires);
      EXPECT_NEAR(Seconds(name, ranks, network, 1e8), theory, 1e-9 + 1e-6 * theory) << name << " x " << ranks;
    }
  }
}

TEST(CollectiveSimulation, AnAllToAllTakesThePartsThatARankSends) {
  for (const std::string name : {"direct", "pairwise"}) {
    for (const int ranks : {1, 2, 3, 8, 33}) {
      const auto schedule = MakeSchedule(name, Collective::kAllToAll, {.ranks = ranks}).value();
      const CommTerms terms = ranks == 1 ? CommTerms() : FindSchedule(name)->exchange_cost(ranks, 1e8).terms;
      const auto time = SimulateCollective(*schedule, TestNetwork(1e-3), 1e8, kOneSlab);
      const double moving = terms.link_bytes / 1e9, theory = terms.messages * 1e-3 + moving;
      if (name == "direct") {
        EXPECT_NEAR(time->seconds, theory, 1e-9 + 1e-6 * theory) << ranks;
      } else {  // several rounds are in flight
        EXPECT_LE(time->seconds, theory + 1e-9) << ranks;
        EXPECT_GE(time->seconds, moving) << ranks;
      }
      EXPECT_EQ(time->adding_s, 0);
    }
  }
}

// However many segments may be in flight, a ring without segments hides no latency.
TEST(CollectiveSimulation, ARingWithoutSegmentsPaysEveryLatency) {
  for (const int ranks : {2, 5, 16}) {
    for (const double bytes : {1e3, 1e8}) {
      const double moving = 2 * (ranks - 1) * bytes / ranks / 1e9;
      EXPECT_NEAR(Seconds("ring", ranks, TestNetwork(1e-3), bytes, {.segment_bytes = 1e18}),
                  2 * (ranks - 1) * 1e-3 + moving, 1e-9)
          << ranks;
    }
  }
}

TEST(CollectiveSimulation, WaitsForWhatTheWorkersWaitFor) {
  for (const std::string& algorithm : AlgorithmsFor(Collective::kAllReduce)) {
    const Cluster cluster = TestNetwork();
    for (const int ranks : {2, 5, 8}) {
      const auto schedule = AllReduce(algorithm, ranks);
      const auto plan = PlanCollective(*schedule, ShapeOf(cluster, ranks), 1).value();
      for (size_t c = 0; c < plan.after.size(); ++c) {
        const int rank = plan.classes.first[c];
        EXPECT_EQ(plan.after[c], LowerSchedule(*schedule, rank, MaxRounds(*schedule), false).after)
            << algorithm << ", rank " << rank << " of " << ranks;
      }
    }
  }
}

TEST(CollectiveSimulation, PipelinedTreesTakeLittleMoreThanTwiceTheBuffer) {
  for (int ranks : {4, 8, 16}) {
    const double seconds = Seconds("double-binary-tree", ranks, TestNetwork(), 1e9, {});
    EXPECT_GE(seconds, 2) << ranks;
    EXPECT_LE(seconds, 2.6) << ranks;
  }
}

// Of three ranks the first folds into the second. Meanwhile the third sends half of what it has to the
// second, which will want it only afterwards: both go over the second's card.
TEST(CollectiveSimulation, TransfersThatAreNotAwaitedYetUseTheirShareOfTheLink) {
  constexpr double kBytes = 1e6, kAlone = kBytes / 1e9;
  Cluster cluster = TestNetwork();
  EXPECT_NEAR(Seconds("halving-doubling", 3, cluster, kBytes), 3 * kAlone, 1e-9);
  cluster.socket_bytes = kBytes;
  EXPECT_NEAR(Seconds("halving-doubling", 3, cluster, kBytes), 3.5 * kAlone, 1e-9);
  // What does not fit into a socket waits at its sender.
  cluster.socket_bytes = kBytes / 4;
  EXPECT_NEAR(Seconds("halving-doubling", 3, cluster, kBytes), 3 * kAlone, 1e-9);
}

TEST(CollectiveSimulation, ReportsTheMeanEndOfTheRanks) {
  const auto time = SimulateCollective(*AllReduce("halving-doubling", 3), TestNetwork(), 1e6, kOneSlab);
  // In the last millisecond only the first two ranks send.
  EXPECT_NEAR(time->seconds, 3e-3, 1e-9);
  EXPECT_NEAR(time->mean_s, (3e-3 + 3e-3 + 2e-3) / 3, 1e-9);
  const auto ring = SimulateCollective(*AllReduce("ring", 4), TestNetwork(), 1e6, kOneSlab);
  EXPECT_NEAR(ring->mean_s, ring->seconds, 1e-12);
  // A star's root is done when its sockets have taken what the others still wait for.
  Cluster sockets = TestNetwork();
  sockets.socket_bytes = 1e6;
  const auto star = SimulateCollective(*AllReduce("star", 3), sockets, 1e6, kOneSlab);
  EXPECT_NEAR(star->seconds, 4e-3, 1e-9);
  EXPECT_NEAR(star->mean_s, (2e-3 + 4e-3 + 4e-3) / 3, 1e-9);
}

TEST(CollectiveSimulation, PipelinedSlabsHideLatencyButNeverBandwidth) {
  const Cluster cluster = TestNetwork(1e-4);
  const double whole = Seconds("ring", 4, cluster, 1e8), piped = Seconds("ring", 4, cluster, 1e8, {});
  EXPECT_LT(piped, whole);
  EXPECT_GE(piped, 0.15);
  // A star whose hub gathers some slabs while it hands back others fills both directions of its link.
  EXPECT_NEAR(Seconds("star", 4, TestNetwork(), 1e9, {}), 3, 0.1);
}

TEST(CollectiveSimulation, ClassesEqualTheSimulationOfAllRanks) {
  // The same schedule, but every rank a class of its own.
  class NoSymmetry final : public Schedule {
   public:
    explicit NoSymmetry(const Schedule& other) : other_(other) {}
    std::string name() const override { return other_.name(); }
    int ranks() const override { return other_.ranks(); }
    int chunks() const override { return other_.chunks(); }
    int rounds(int rank) const override { return other_.rounds(rank); }
    void Round(int rank, int round, std::vector<Transfer>& transfers) const override {
      other_.Round(rank, round, transfers);
    }

   private:
    const Schedule& other_;
  };
  Cluster cluster = TestNetwork(1e-5);
  cluster.add_s_per_byte = 1e-10;
  cluster.gpus_per_node = 4;
  cluster.intra_bytes_per_s = 1.7e9;
  cluster.intra_latency_s = 3e-6;
  cluster.oversubscription = 1.5;
  for (const std::string name : {"ring", "star", "direct", "halving-doubling", "hierarchical",
                                 "hierarchical:2", "hierarchical:3", "hierarchical:6", "hierarchical:8"}) {
    for (int ranks : {2, 4, 8, 12, 16, 24, 32}) {
      const ScheduleShape shape = {.ranks = ranks, .ranks_per_node = std::min(ranks, 4)};
      const auto schedule = MakeSchedule(name, Collective::kAllReduce, shape);
      if (!schedule.ok()) continue;  // the ranks do not divide into groups
      for (const Pipelining& pipelining : {kOneSlab, Pipelining{.segment_bytes = 1e6, .depth = 3}}) {
        const auto quick = SimulateCollective(**schedule, cluster, 3e7, pipelining);
        const auto slow = SimulateCollective(NoSymmetry(**schedule), cluster, 3e7, pipelining);
        ASSERT_TRUE(quick.ok() && slow.ok());
        EXPECT_NEAR(quick->seconds, slow->seconds, 1e-9 + 1e-7 * slow->seconds) << name << " x " << ranks;
        EXPECT_LE(quick->classes, slow->classes);
      }
    }
  }
}

TEST(CollectiveSimulation, RanksOfANodeShareItsNetworkCards) {
  const Cluster cluster = Nodes(1e10);
  // 2(G-1)/G M/B1 within the nodes, 2(n-1)/n M/B2 between them.
  EXPECT_NEAR(Seconds("hierarchical", 64, cluster, 1e8), 2 * 7.0 / 8 * 0.01 + 2 * 7.0 / 8 * 0.1, 1e-6);
  EXPECT_NEAR(Seconds("ring", 64, cluster, 1e8), 2 * 63.0 / 64 * 0.1, 1e-6);
  EXPECT_NEAR(Seconds("hierarchical:8", 64, cluster, 1e8), Seconds("hierarchical", 64, cluster, 1e8), 1e-9);
  EXPECT_NEAR(Seconds("hierarchical:1", 64, cluster, 1e8), Seconds("ring", 64, cluster, 1e8), 1e-9);
  // Direct sends 7/8 of what leaves a rank over the node's one card, 8 ranks at a time.
  EXPECT_NEAR(Seconds("direct", 64, cluster, 1e8), 2 * 8 * (56.0 / 64) * 0.1, 1e-6);
}

TEST(CollectiveSimulation, SeveralRingsUseSeveralNetworkCards) {
  Cluster cluster = Nodes(1e11);
  const double one = Seconds("ring", 64, cluster, 1e8);
  cluster.cards_per_node = 4;
  EXPECT_NEAR(Seconds("ring", 64, cluster, 1e8), one, 1e-6);
  cluster.rings = 4;
  EXPECT_NEAR(Seconds("ring", 64, cluster, 1e8), one / 4, 1e-6);
}

TEST(CollectiveSimulation, AnOversubscribedFabricSlowsTransfersThroughIt) {
  Cluster cluster = TestNetwork();
  cluster.oversubscription = 4;
  EXPECT_NEAR(Seconds("ring", 8, cluster, 1e8), 4 * 0.175, 1e-6);
}

TEST(CollectiveSimulation, Simulates65536Ranks) {
  const Cluster cluster = Nodes(1e10, 2e-5);
  EXPECT_GT(Seconds("ring", 4096, cluster, 25 << 20, {}), 2 * 4095 * 2e-5 / 8);
  EXPECT_GT(Seconds("hierarchical", 65536, cluster, 25 << 20, {}), 2 * 8191 * 2e-5);
}

// The theory of the actual buckets against the simulator that runs the servers' own waiting rules.

constexpr double kTolerance = 0.05;

struct Case {
  CommPattern pattern;
  std::vector<double> buckets;

  std::string Name() const {
    const char* places[] = {"rank0", "dedicated", "colocated"};
    return absl::StrCat(pattern.pipelined ? "pipelined, " : "serial, ", places[int(pattern.place)], ", ",
                        pattern.workers, " workers, ", pattern.servers, " servers, ", buckets.size(),
                        " buckets from ", buckets[0] / 1e6, " MB");
  }
};

// Equal buckets, and a small first one with unequal others.
std::vector<std::vector<double>> BucketLists() {
  return {{30e6}, {15e6, 15e6}, {1e6, 29e6}, {6e6, 6e6, 6e6, 6e6, 6e6}, {1e6, 9e6, 4e6, 14e6, 2e6}};
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const bool pipelined : {true, false}) {
    for (const ServerPlace place : {ServerPlace::kRank0, ServerPlace::kDedicated, ServerPlace::kColocated}) {
      for (const int workers : {2, 3, 4, 8}) {
        for (const int servers : {1, 2, 3, 4}) {
          if (place == ServerPlace::kColocated && servers > workers) continue;
          for (const std::vector<double>& buckets : BucketLists())
            cases.push_back({{.scheme = Scheme::kServerSync,
                              .workers = workers,
                              .place = place,
                              .pipelined = pipelined,
                              .servers = servers},
                             buckets});
        }
      }
    }
  }
  return cases;
}

ServerRun RunOf(const Case& one) {
  return {.workers = one.pattern.workers,
          .servers = one.pattern.servers,
          .place = one.pattern.place,
          .pipelined = one.pattern.pipelined,
          .bucket_bytes = one.buckets,
          .ready_s = std::vector<double>(one.buckets.size(), 0)};
}

Cluster ClusterWith(const Wires& wires) {
  return {.link_bytes_per_s = wires.bytes_per_s,
          .fraction = 1,
          .latency_s = wires.latency_s,
          .intra_latency_s = 0,
          .add_s_per_byte = wires.add_s_per_byte,
          .server_add_s_per_byte = wires.add_s_per_byte,
          .server_update_s_per_byte = wires.update_s_per_byte,
          .burst_bytes = wires.burst_bytes};
}

double SimulatedStep(const ServerRun& run, const Wires& wires) {
  return SimulateServers(run, ClusterWith(wires)).value().step_s;
}

double TheorySeconds(const CommPattern& pattern, const std::vector<double>& buckets, const Wires& wires) {
  return TimeOfServerExchange(pattern, buckets, wires).last;
}

// 1 Gbit/s; then one with a latency, additions, updates and bursts that count.
constexpr Wires kPlain{.bytes_per_s = 119e6};
constexpr Wires kAll{.latency_s = 2e-3,
                     .bytes_per_s = 119e6,
                     .add_s_per_byte = 1e-9,
                     .update_s_per_byte = 1e-9,
                     .burst_bytes = 131072};

TEST(ActualBuckets, TheoryOfTheActualBucketsEqualsTheSimulation) {
  for (const Wires& wires : {kPlain, kAll}) {
    for (const Case& one : Cases()) {
      const double simulated = SimulatedStep(RunOf(one), wires);
      EXPECT_NEAR(TheorySeconds(one.pattern, one.buckets, wires), simulated, kTolerance * simulated)
          << one.Name() << (wires.latency_s > 0 ? " with latency" : "");
    }
  }
}

// Of an aligned step, the simulator gives the mean over workers.
TEST(ActualBuckets, AWorkerBesideAllServersIsDoneEarlier) {
  for (const Case& one : Cases()) {
    ServerRun run = RunOf(one);
    run.align_steps = true;
    const ExchangeTime theory = TimeOfServerExchange(one.pattern, one.buckets, kPlain);
    const double simulated = SimulatedStep(run, kPlain);
    EXPECT_NEAR(theory.mean, simulated, kTolerance * simulated) << one.Name();
    const bool beside = one.pattern.place == ServerPlace::kRank0 ||
                        (one.pattern.place == ServerPlace::kColocated && one.pattern.servers == 1);
    EXPECT_EQ(theory.mean < theory.last, beside) << one.Name();
  }
}

// Without this, the test above would also hold for a theory that ignores the buckets.
TEST(ActualBuckets, TheLawForLargeGradientsDiffersWithFewBuckets) {
  const CommPattern pattern{.scheme = Scheme::kServerSync, .workers = 4, .place = ServerPlace::kDedicated};
  for (const int buckets : {1, 2, 5, 100}) {
    const Case one{pattern, std::vector<double>(buckets, 30e6 / buckets)};
    const double law = ExchangeSeconds(pattern, 30e6, kPlain);
    EXPECT_NEAR(SimulatedStep(RunOf(one), kPlain) / law, (buckets + 1.0) / buckets, 1e-9) << buckets;
    EXPECT_NEAR(TheorySeconds(pattern, one.buckets, kPlain) / law, (buckets + 1.0) / buckets, 1e-9);
  }
}

// The workers begin together: otherwise the server would add the next gradient of the worker beside it while
// the others pull.
TEST(ActualBuckets, TheoryHoldsForSlowAddersAndSixteenBitGradients) {
  const auto simulated = [](ServerRun run, const Wires& wires) {
    run.align_steps = true;
    return run.workers / SimulateServers(run, ClusterWith(wires)).value().worker_steps_per_s;
  };
  for (Case one : Cases()) {
    if (one.pattern.place == ServerPlace::kColocated) continue;
    Wires wires = kPlain;
    wires.add_s_per_byte = 4 / wires.bytes_per_s;
    for (const double pushed : {1.0, 0.5}) {
      one.pattern.pushed = pushed;
      ServerRun run = RunOf(one);
      run.pushed_part = pushed;
      for (const Wires& with : {kPlain, wires}) {
        const double seconds = simulated(run, with);
        EXPECT_NEAR(TheorySeconds(one.pattern, one.buckets, with), seconds, kTolerance * seconds)
            << one.Name() << ", pushed " << pushed;
      }
    }
  }
}

// Nothing synchronizes the workers of these steps but the server: with varying computing times the steps of a
// serial server must not drift into one another.
TEST(ActualBuckets, SerialStepsDoNotOverlapIfWorkersDiffer) {
  for (const Case& one : Cases()) {
    if (one.pattern.pipelined || one.pattern.servers > 2 || one.pattern.workers > 4) continue;
    ServerRun run = RunOf(one);
    run.no_groups = true;
    run.forward_s = run.backward_s = 0.01;
    run.jitter = 0.05;
    run.warmup_steps = 10;
    run.steps = 40;
    const double step = 0.02 + TheorySeconds(one.pattern, one.buckets, kPlain);
    EXPECT_NEAR(SimulatedStep(run, kPlain), step, kTolerance * step) << one.Name();
  }
}

// Worker 0 computes until long after the other has pushed. Then only it pushes; after that both pull.
TEST(ActualBuckets, NoWeightsLeaveASerialServerWhileALateWorkerPushes) {
  const std::vector<double> buckets(5, 6e6);
  ServerRun run{.workers = 2,
                .place = ServerPlace::kDedicated,
                .pipelined = false,
                .forward_s = 0.5,
                .backward_s = 0.5,
                .bucket_bytes = buckets,
                .ready_s = std::vector<double>(5, 0.5),
                .slow_workers = 1,
                .slowness = 3};
  const double gradient_s = 30e6 / kPlain.bytes_per_s;
  EXPECT_NEAR(SimulatedStep(run, kPlain), 3 + 3 * gradient_s, 1e-6);
}

TEST(ActualBuckets, AnAsynchronousWorkerHasTheLinksForItself) {
  for (const bool pipelined : {true, false}) {
    for (const std::vector<double>& buckets : BucketLists()) {
      const CommPattern pattern{.scheme = Scheme::kServerAsync,
                                .workers = 1,
                                .place = ServerPlace::kDedicated,
                                .pipelined = pipelined};
      ServerRun run = RunOf({pattern, buckets});
      run.consistency = "async";
      const double simulated = SimulatedStep(run, kAll);
      EXPECT_NEAR(TheorySeconds(pattern, buckets, kAll), simulated, kTolerance * simulated)
          << buckets.size() << (pipelined ? " pipelined" : " serial");
    }
  }
}

}  // namespace
}  // namespace psring
