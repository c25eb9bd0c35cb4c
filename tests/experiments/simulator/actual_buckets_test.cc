// The theory of the actual buckets against the simulator that runs the servers' own waiting rules.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "experiments/simulator/servers.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {
namespace {

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
