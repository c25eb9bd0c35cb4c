#include <gtest/gtest.h>

#include <algorithm>

#include "common/workloads/workload.h"
#include "experiments/simulator/servers.h"
#include "tests/experiments/simulator/test_network.h"

namespace psring {
namespace {

constexpr double kBytes = 1e8;

constexpr ServerPlace kPlaces[] = {ServerPlace::kRank0, ServerPlace::kDedicated, ServerPlace::kColocated};

// `buckets` of 100 MB in all, ready at once.
ServerRun Exchange(int workers, int servers, ServerPlace place, bool pipelined, int buckets) {
  return {.workers = workers,
          .servers = servers,
          .place = place,
          .pipelined = pipelined,
          .bucket_bytes = std::vector<double>(buckets, kBytes / buckets),
          .ready_s = std::vector<double>(buckets, 0)};
}

ServerTime Simulated(const ServerRun& run, const Cluster& cluster = TestNetwork()) {
  return SimulateServers(run, cluster).value();
}

double Theory(const ServerRun& run, const Wires& wires) {
  return ExchangeSeconds({.scheme = Scheme::kServerSync,
                          .workers = run.workers,
                          .place = run.place,
                          .pipelined = run.pipelined,
                          .servers = run.servers},
                         kBytes, wires);
}

TEST(ServerSimulation, OnlyTheWorkerBesideAnAsynchronousServerMakesMostSteps) {
  for (const int workers : {4, 100}) {
    const auto most = [&](ServerPlace place) {
      ServerRun run = Exchange(workers, 1, place, true, 1);
      run.consistency = "async";
      run.forward_s = 0.1;
      run.jitter = 0.02;
      return Simulated(run).most_share * workers;
    };
    EXPECT_GT(most(ServerPlace::kRank0), 1.5) << workers;
    EXPECT_LT(most(ServerPlace::kDedicated), 1.2) << workers;
  }
}

TEST(ServerSimulation, SerialExchangesEqualTheory) {
  Cluster cluster = TestNetwork();
  cluster.latency_s = 1e-3;
  const Wires wires{.latency_s = 1e-3, .bytes_per_s = 1e9};
  for (const ServerPlace place : kPlaces) {
    for (int workers : {2, 3, 4, 8, 64}) {
      for (int servers : {1, 2, workers}) {
        const ServerRun run = Exchange(workers, servers, place, false, 1);
        EXPECT_NEAR(Simulated(run, cluster).step_s, Theory(run, wires), 1e-9)
            << workers << " workers, " << servers << " servers, place " << int(place);
      }
    }
  }
}

TEST(ServerSimulation, PipelinedExchangesComeCloseToTheoryWithManyBuckets) {
  const Wires wires{.bytes_per_s = 1e9};
  for (const ServerPlace place : kPlaces) {
    for (int workers : {2, 4, 8}) {
      for (int servers : {1, 2, workers}) {
        const ServerRun run = Exchange(workers, servers, place, true, 100);
        const double slower = Simulated(run).step_s / Theory(run, wires);
        EXPECT_TRUE(slower >= 1 - 1e-9 && slower <= 1.03)
            << slower << ": " << workers << " workers, " << servers << " servers, place " << int(place);
      }
    }
  }
}

TEST(ServerSimulation, FasterWorkersWaitForTheLast) {
  // The slow worker computes 0.2 s longer; without bytes worth speaking of the other three wait for it.
  ServerRun run{.workers = 4, .forward_s = 0.1, .backward_s = 0.1, .bucket_bytes = {4}, .ready_s = {0.1}};
  EXPECT_NEAR(Simulated(run).wait_s, 0, 1e-6);
  run.slow_workers = 1;
  run.slowness = 2;
  EXPECT_NEAR(Simulated(run).wait_s, 0.2 * 3 / 4, 1e-6);
  run.consistency = "async";
  EXPECT_EQ(Simulated(run).wait_s, 0);
}

TEST(ServerSimulation, ABurstShortensEveryPhase) {
  Cluster cluster = TestNetwork();
  const ServerRun run = Exchange(4, 1, ServerPlace::kDedicated, false, 1);
  const double without = Simulated(run, cluster).step_s;
  cluster.burst_bytes = 0.01 * kBytes;
  // Two phases, in each of which a link is at twice its rate until its tokens and what comes back meanwhile
  // are gone.
  EXPECT_NEAR(Simulated(run, cluster).step_s, without - 2 * cluster.burst_bytes / 1e9, 1e-4 * without);
}

TEST(ServerSimulation, AddingIsHiddenUnlessItIsSlowerThanTheLink) {
  Cluster cluster = TestNetwork();
  cluster.server_add_s_per_byte = 0.5e-9;
  ServerRun run = Exchange(4, 1, ServerPlace::kDedicated, false, 1);
  EXPECT_NEAR(Simulated(run, cluster).step_s, 0.8, 1e-9);
  cluster.server_add_s_per_byte = 2e-9;
  EXPECT_NEAR(Simulated(run, cluster).step_s, 0.8 + 0.4, 1e-9);
  cluster.server_update_s_per_byte = 1e-9;
  EXPECT_NEAR(Simulated(run, cluster).step_s, 0.8 + 0.4 + 0.1, 1e-9);
  run.servers = 2;
  EXPECT_NEAR(Simulated(run, cluster).step_s, 0.65, 1e-9);
}

TEST(ServerSimulation, PushesOverlapBackwardAndTheNextStepWaitsForAllWeights) {
  ServerRun run = Exchange(2, 1, ServerPlace::kDedicated, true, 2);
  run.forward_s = 1;
  run.backward_s = 1;
  run.ready_s = {0, 1};
  const ServerTime time = Simulated(run);
  // The second bucket: 2 workers push 50 MB each, then pull.
  EXPECT_NEAR(time.exposed_s, 0.2, 1e-9);
  EXPECT_NEAR(time.step_s, 2.2, 1e-9);
  EXPECT_NEAR(time.busy_s, 0.4, 1e-9);
}

// Beside the server's worker the other one pushes for 0.1 s, which both wait for, and pulls for 0.1 s.
TEST(ServerSimulation, AStepThatBeginsTogetherEndsSeparatelyForEachWorker) {
  ServerRun run = Exchange(2, 1, ServerPlace::kRank0, true, 1);
  EXPECT_NEAR(Simulated(run).step_s, 0.2, 1e-9);
  run.align_steps = true;
  const ServerTime time = Simulated(run);
  EXPECT_NEAR(time.step_s, (0.1 + 0.2) / 2, 1e-9);
  EXPECT_NEAR(time.worker_steps_per_s, 2 / 0.2, 1e-6);
}

TEST(ServerSimulation, AClippedStepIsAnsweredWhenAllBucketsHaveArrived) {
  ServerRun run = Exchange(2, 1, ServerPlace::kDedicated, true, 2);
  run.forward_s = run.backward_s = 1;
  run.ready_s = {0, 1};
  EXPECT_NEAR(Simulated(run).exposed_s, 0.2, 1e-9);
  run.clips = true;
  // The second bucket is pushed for 0.1 s; then both are pulled for 0.2 s.
  EXPECT_NEAR(Simulated(run).exposed_s, 0.3, 1e-9);
  run.servers = 2;
  Cluster cluster = TestNetwork();
  cluster.latency_s = 1e-3;
  // Twice as fast; and a message each for push, norm there and back, and pull.
  EXPECT_NEAR(Simulated(run, cluster).exposed_s, 0.15 + 4e-3, 1e-9);
}

// The third worker takes ten steps' time for one, and is dropped every time.
TEST(ServerSimulation, NoWorkerWaitsForASpareOne) {
  ServerRun run{.consistency = "backup:1",
                .workers = 3,
                .place = ServerPlace::kDedicated,
                .forward_s = 0.5,
                .backward_s = 0.5,
                .bucket_bytes = {4, 4},
                .ready_s = {0.1, 0.5},
                .delays = {.slowness = {1, 1, 10}},
                .warmup_steps = 20,
                .steps = 400};
  const ServerTime time = Simulated(run);
  EXPECT_NEAR(time.worker_steps_per_s, 2, 0.02);
  EXPECT_NEAR(time.dropped_share, 0.1 / 2.1, 0.003);
  EXPECT_NEAR(time.wait_s, 0, 1e-3);
  run.consistency = "sync";
  EXPECT_NEAR(Simulated(run).step_s, 10, 0.01);
}

// With all workers alike none has a reason to be late: N - B of N make a step, whatever B is.
TEST(ServerSimulation, DroppedGradientsDoNotUseTheServersLink) {
  ServerRun run = Exchange(4, 1, ServerPlace::kDedicated, true, 1);
  run.forward_s = 1;
  run.consistency = "backup:1";
  run.warmup_steps = 4;
  run.steps = 40;
  const ServerTime time = Simulated(run);
  // Three push for 0.3 s; then these and the dropped one pull.
  EXPECT_NEAR(time.dropped_share, 0.25, 0.03);
  EXPECT_NEAR(time.step_s, 1 + 0.3 + 0.4, 0.03);
}

TEST(ServerSimulation, DelaysEqualThoseOfLiveWorkers) {
  ServerRun run{
      .workers = 4,
      .place = ServerPlace::kDedicated,
      .forward_s = 0.01,
      .backward_s = 0.01,
      .bucket_bytes = {4},
      .ready_s = {0.01},
      .delays = {.jitter = {.kind = TimeDistribution::Kind::kExponential, .scale_ms = 5}, .seed = 7},
      .warmup_steps = 3,
      .steps = 50};
  double slowest_ms = 0;
  for (int step = 3; step < 53; ++step) {
    double of_step = 0;
    for (int worker = 0; worker < 4; ++worker)
      of_step = std::max(of_step, DrawMs(run.delays.jitter, 7, TimeUse::kJitter, worker, step));
    slowest_ms += of_step / 50;
  }
  EXPECT_NEAR(Simulated(run).step_s, 0.02 + slowest_ms / 1e3, 1e-5);
  run.delays = {.slowness = {1, 1, 3, 1}};
  EXPECT_NEAR(Simulated(run).step_s, 0.06, 1e-5);
}

TEST(ServerSimulation, GroupsEqualTheSimulationOfAllWorkers) {
  Cluster cluster = TestNetwork();
  cluster.gpus_per_node = 4;
  cluster.intra_bytes_per_s = 2e9;
  cluster.server_add_s_per_byte = 1e-10;
  cluster.server_update_s_per_byte = 1e-10;
  cluster.latency_s = 1e-4;
  cluster.oversubscription = 1.3;
  for (const ServerPlace place : kPlaces) {
    for (const int servers : {1, 4, 16}) {
      for (const int slow : {0, 1, 5}) {
        ServerRun run = Exchange(16, servers, place, true, 5);
        run.forward_s = 0.1;
        run.backward_s = 0.2;
        run.ready_s = {0.02, 0.05, 0.1, 0.15, 0.2};
        run.slow_workers = slow;
        run.slowness = 1.5;
        run.warmup_steps = 1;
        run.steps = 3;
        const ServerTime groups = Simulated(run, cluster);
        run.no_groups = true;
        const ServerTime alone = Simulated(run, cluster);
        EXPECT_NEAR(groups.step_s, alone.step_s, 1e-7)
            << servers << " servers, place " << int(place) << ", slow " << slow;
        EXPECT_LT(groups.simulated, alone.simulated);
      }
    }
  }
}

ServerRun Queue(int workers, double compute_s) {
  return {.consistency = "async",
          .workers = workers,
          .place = ServerPlace::kDedicated,
          .forward_s = compute_s,
          .bucket_bytes = {1e6},
          .ready_s = {0},
          .warmup_steps = 200,
          .steps = 100'000 / workers,
          .exponential = true};
}

// One server with a queue and N equal workers, exact for exponential service (Reiser & Lavenberg 1980):
//   R(n) = s (1 + Q(n-1)),  X(n) = n / (T + R(n)),  Q(n) = X(n) R(n)
struct ClosedQueue {
  double pushes_per_s = 0;  // X
  double response_s = 0;    // R: from a push until its answer
  double at_server = 0;     // Q, including the push being served
};
ClosedQueue MeanValueAnalysis(int workers, double compute_s, double service_s) {
  ClosedQueue queue;
  for (int n = 1; n <= workers; ++n) {
    queue.response_s = service_s * (1 + queue.at_server);
    queue.pushes_per_s = n / (compute_s + queue.response_s);
    queue.at_server = queue.pushes_per_s * queue.response_s;
  }
  return queue;
}

TEST(ServerSimulation, AsynchronousThroughputAndQueueAgreeWithMeanValueAnalysis) {
  Cluster cluster = TestNetwork();
  cluster.link_bytes_per_s = 1e15;  // the server's processor is the one queue
  cluster.server_add_s_per_byte = 0.7e-8;
  cluster.server_update_s_per_byte = 0.3e-8;  // 10 ms a push in all
  for (const int workers : {1, 3, 8, 16}) {
    for (const double compute_s : {0.01, 0.1}) {
      const ServerTime time = Simulated(Queue(workers, compute_s), cluster);
      const ClosedQueue theory = MeanValueAnalysis(workers, compute_s, 0.01);
      SCOPED_TRACE(testing::Message() << workers << ", " << compute_s);
      EXPECT_NEAR(time.worker_steps_per_s, theory.pushes_per_s, 0.02 * theory.pushes_per_s);
      EXPECT_NEAR(time.staleness_mean, workers - 1, 1e-6 * workers);
      EXPECT_NEAR(time.exposed_s, theory.response_s, 0.02 * theory.response_s);
    }
  }
}

TEST(ServerSimulation, WorkersOfAnAsynchronousServerShareItsLink) {
  ServerRun run = Exchange(8, 1, ServerPlace::kDedicated, true, 1);
  run.consistency = "async";
  // 8 pushes of 0.1 s each fill the link where computing takes a little less than 8 - 2 of them.
  run.jitter = 0.2;
  run.steps = 100;
  for (const double compute_s : {0.3, 0.5}) {
    run.forward_s = compute_s;
    const ServerTime time = Simulated(run);
    EXPECT_GT(time.worker_steps_per_s, 7.5) << compute_s;
    EXPECT_LE(time.worker_steps_per_s, 10.01) << compute_s;
    EXPECT_NEAR(time.staleness_mean, 7, 1e-6);
  }
  run.forward_s = 10;
  EXPECT_NEAR(Simulated(run).step_s, 10.2, 0.3);
}

TEST(ServerSimulation, AFewAsynchronousWorkersRepresentMany) {
  Cluster cluster = TestNetwork();
  cluster.gpus_per_node = 4;
  cluster.intra_bytes_per_s = 1e10;
  for (const ServerPlace place : kPlaces) {
    for (const double compute_s : {1.0, 4.0, 16.0}) {
      ServerRun run = Exchange(128, 4, place, true, 2);
      run.consistency = "async";
      run.forward_s = run.backward_s = compute_s / 2;
      run.jitter = 0.1;
      const ServerTime all = Simulated(run, cluster);
      run.most_alone = 32;
      const ServerTime few = Simulated(run, cluster);
      EXPECT_LT(few.simulated, 48);
      EXPECT_NEAR(few.step_s, all.step_s, 0.03 * all.step_s) << compute_s << " place " << int(place);
      EXPECT_NEAR(few.staleness_mean, 127, 1e-6);
    }
  }
}

TEST(ServerSimulation, AsynchronousStalenessIsThatOfTheTheoryForManyWorkers) {
  // A push waits in a long queue, so that many readings began before measuring or end after it.
  Cluster cluster = TestNetwork();
  cluster.server_add_s_per_byte = 1e-8;
  for (const int workers : {64, 512}) {
    ServerRun run = Exchange(workers, 1, ServerPlace::kRank0, true, 2);
    run.consistency = "async";
    run.forward_s = 1;
    run.jitter = 0.2;
    EXPECT_NEAR(Simulated(run, cluster).staleness_mean, workers - 1, 1e-6 * workers);
  }
}

TEST(ServerSimulation, BoundedStalenessIsBetweenTheOtherModes) {
  ServerRun run = Exchange(8, 1, ServerPlace::kDedicated, true, 1);
  run.forward_s = 4;
  run.jitter = 0.3;
  run.warmup_steps = 20;
  run.steps = 200;
  const auto step = [&](const std::string& consistency) {
    run.consistency = consistency;
    return Simulated(run);
  };
  const ServerTime sync = step("sync"), ssp1 = step("ssp:1"), ssp8 = step("ssp:8"), async = step("async");
  EXPECT_LT(ssp1.step_s, sync.step_s);
  EXPECT_LT(ssp8.step_s, ssp1.step_s);
  EXPECT_LE(async.step_s, ssp8.step_s * 1.01);
  EXPECT_LE(ssp1.staleness_max, (2 * 1 + 1) * (8 - 1));
}

TEST(ServerSimulation, OneSlowWorkerDelaysAllThatWaitForIt) {
  ServerRun run = Exchange(8, 8, ServerPlace::kColocated, true, 1);
  run.forward_s = 1;
  const double even = Simulated(run).step_s;
  run.slow_workers = 1;
  run.slowness = 2;
  EXPECT_GT(Simulated(run).step_s, even + 0.8);
  run.consistency = "async";
  EXPECT_LT(Simulated(run).step_s, even + 0.2);
}

TEST(ServerSimulation, Simulates4096WorkersAnd64Servers) {
  const Workload workload = *LoadWorkload("resnet50");
  const std::vector<Bucket> buckets = PlanBuckets(LayoutOf(workload), {});
  Cluster cluster = TestNetwork();
  cluster.gpus_per_node = 8;
  cluster.intra_bytes_per_s = 1e10;
  ServerRun run{.workers = 4096,
                .servers = 64,
                .place = ServerPlace::kDedicated,
                .forward_s = workload.forward_ms / 1e3,
                .backward_s = workload.backward_ms / 1e3};
  for (const Bucket& bucket : buckets) run.bucket_bytes.push_back(4.0 * bucket.count);
  for (const double ms : BucketReadyMs(workload, buckets)) run.ready_s.push_back(ms / 1e3);
  for (const char* consistency : {"sync", "async"}) {
    run.consistency = consistency;
    const ServerTime time = Simulated(run, cluster);
    // At least a push of all through the servers' links, at most push and pull one after the other.
    const double one_way = 4096 / 64e9 * workload.bytes();
    EXPECT_GT(time.step_s, one_way) << consistency;
    EXPECT_LT(time.step_s, 2 * one_way) << consistency;
  }
}

TEST(ServerSimulation, ReportsUnsupportedCases) {
  const ServerRun run = Exchange(4, 1, ServerPlace::kDedicated, true, 1);
  ServerRun clipped = run, jittery = run, spare = run, delayed = run;
  clipped.clips = true;
  clipped.consistency = "async";
  jittery.workers = spare.workers = delayed.workers = 1024;
  jittery.jitter = 0.1;
  spare.consistency = "backup:1";
  delayed.delays.jitter = {.scale_ms = 1};
  for (const ServerRun& wrong :
       {Exchange(4, 5, ServerPlace::kColocated, true, 1), clipped, jittery, spare, delayed}) {
    EXPECT_EQ(SimulateServers(wrong, TestNetwork()).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace psring
