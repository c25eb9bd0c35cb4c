// The results of a parameter server job, with every client.
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <string>
#include <vector>

#include "tests/eventually.h"
#include "tests/ps_server/cluster.h"
#include "tests/ps_server/test_job.h"

namespace psring {
namespace {

const std::vector<size_t> kSizes = {3, 1000, 1, kChunkBytes / sizeof(float) + 3};
const std::vector<size_t> kLargeSizes = {3, 1000, 1, 3 * kChunkBytes / sizeof(float) + 35};

// Fewer on a GPU: what it computes does not depend on their number. Buckets with fewer elements than servers
// have empty slices.
const bool kOnCpu = PSRING_TEST_DEVICE == std::string("cpu");
const std::vector<int> kCounts = kOnCpu ? std::vector{1, 2, 3, 4} : std::vector{1, 3};
const std::vector<int> kServers = kOnCpu ? std::vector{1, 2, 3} : std::vector{1};
class Workers : public ::testing::TestWithParam<std::tuple<int, bool>> {};
INSTANTIATE_TEST_SUITE_P(Exchange, Workers,
                         ::testing::Combine(::testing::ValuesIn(kCounts), ::testing::Bool()),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) ? "Serial" : "Pipelined");
                         });

constexpr OptimizerKind kOptimizers[] = {OptimizerKind::kSgd, OptimizerKind::kMomentum, OptimizerKind::kAdam};

TEST_P(Workers, SynchronousEqualsALoopWithinRounding) {
  const auto [workers, serial] = GetParam();
  const ServerJob job = MakeJob(workers, kSizes, {.serial = serial, .optimizer = OptimizerKind::kMomentum});
  const std::vector<float> expected = TrainAlone(job, kSteps);
  for (const int servers : kServers) {
    const JobResult result = RunJob(job, servers);
    for (int rank = 0; rank < workers; ++rank) {
      EXPECT_EQ(result.weights[rank], result.weights[0]);
      EXPECT_LT(RelativeDistance(result.weights[rank], expected), 1e-5);
    }
    EXPECT_EQ(result.stats[0].staleness_histogram, std::vector<int64_t>{result.stats[0].pushes});
  }
}

TEST_P(Workers, DeterministicEqualsALoopBitForBit) {
  const auto [workers, serial] = GetParam();
  for (const OptimizerKind optimizer : kOptimizers) {
    const std::vector<size_t>& sizes = optimizer == OptimizerKind::kMomentum ? kLargeSizes : kSizes;
    ServerJob job =
        MakeJob(workers, sizes, {.deterministic = true, .serial = serial, .optimizer = optimizer});
    job.schedule = {
        .decay = LrDecay::kLinear, .base = 0.1, .scale = 2, .warmup_samples = 40, .total_samples = 1000};
    const std::vector<float> expected = TrainAlone(job, kSteps);
    for (const int servers : kServers) {
      for (const std::vector<float>& weights : RunJob(job, servers).weights) {
        EXPECT_EQ(weights, expected) << OptimizerName(optimizer) << ", " << servers << " servers";
      }
    }
  }
}

TEST_P(Workers, AsynchronousStalenessSumsToTheVersionsOfOthers) {
  const auto [workers, serial] = GetParam();
  const ServerJob job = MakeJob(workers, kSizes, {.consistency = "async", .serial = serial});
  const JobResult result = RunJob(job, 1, 20);
  const size_t buckets = job.buckets.size();
  int64_t all_staleness = 0;
  for (int rank = 0; rank < workers; ++rank) {
    int64_t of_rank = 0, last_versions = 0;
    for (size_t bucket = 0; bucket < buckets; ++bucket) {
      int64_t received = 0, sum = 0;
      for (const auto& step : result.exchanges[rank]) {
        EXPECT_EQ(step[bucket].staleness, step[bucket].version - 1 - received);
        received = step[bucket].version;
        sum += step[bucket].staleness;
      }
      // Between a worker's pushes the version grows by its own push and those of the others, so its staleness
      // sums to the version of its last push minus its own pushes.
      EXPECT_EQ(sum, received - 20);
      of_rank += sum;
      last_versions += received;
    }
    EXPECT_EQ(of_rank, last_versions - result.stats[0].worker_pushes[rank]);
    EXPECT_EQ(of_rank, result.stats[0].worker_staleness_sum[rank]);
    all_staleness += of_rank;
  }
  int64_t from_histogram = 0, pushes = 0;
  for (size_t staleness = 0; staleness < result.stats[0].staleness_histogram.size(); ++staleness) {
    from_histogram += static_cast<int64_t>(staleness) * result.stats[0].staleness_histogram[staleness];
    pushes += result.stats[0].staleness_histogram[staleness];
  }
  EXPECT_EQ(from_histogram, all_staleness);
  EXPECT_EQ(pushes, result.stats[0].pushes);
}

TEST_P(Workers, BoundedStalenessIsWithinItsBound) {
  const auto [workers, serial] = GetParam();
  for (const int bound : {1, 2}) {
    const ServerJob job =
        MakeJob(workers, kSizes, {.consistency = "ssp:" + std::to_string(bound), .serial = serial});
    const JobResult result = RunJob(job, 1, 20);
    EXPECT_LE(result.stats[0].staleness_histogram.size(), (2 * bound + 1) * (workers - 1) + 1);
    // Every push is an update, and the last reply contains all of them.
    for (size_t bucket = 0; bucket < job.buckets.size(); ++bucket) {
      int64_t newest = 0;
      for (int rank = 0; rank < workers; ++rank) {
        newest = std::max(newest, result.exchanges[rank].back()[bucket].version);
      }
      EXPECT_EQ(newest, 20 * workers);
    }
  }
}

// Worker 1 makes its push t when worker 0's push t + 1 is in the weights, which worker 0 may not have before.
TEST(ExchangeTest, BoundedStalenessMakesTheFastWorkerWaitForTheSlowOnesUpdates) {
  const ServerJob job = MakeJob(2, {1000}, {.consistency = "ssp:1", .optimizer = OptimizerKind::kSgd});
  const auto cluster = MakeCluster(2);
  constexpr int64_t kPushes = 3;
  const auto body = [&](TestWorker& worker) {
    for (int64_t step = 0; step < kPushes; ++step) {
      if (worker.rank == 1) {
        const auto fetched = [&] {
          EXPECT_EQ(worker.Fetch(), absl::OkStatus());
          return worker.weights[0];
        };
        const int64_t pushed = std::min(step + 2, kPushes) + step;
        ASSERT_TRUE(Eventually([&] { return fetched() >= static_cast<float>(pushed); }));
        EXPECT_EQ(worker.weights[0], static_cast<float>(pushed));
      }
      const auto results = worker.StepAgain(step, /*samples=*/1);
      ASSERT_EQ(results.status(), absl::OkStatus());
      if (worker.rank == 0) {
        // Its own pushes, and those of worker 1 up to the one for which it had to wait.
        EXPECT_GE((*results)[0].version, step + 1 + step);
        EXPECT_EQ(worker.weights[0], static_cast<float>((*results)[0].version));
      }
    }
  };
  RunWorkers(job, *cluster, body, CountPushes);
  EXPECT_EQ(cluster->server().WaitUntilOver(Soon()), absl::OkStatus());
}

// What a worker of a job with backup workers has got: the weights by version, and its dropped gradients.
struct BackupOutcome {
  std::vector<std::vector<float>> weights;
  int64_t dropped = 0;
};

// Continues with the step that the server names, to the end. `before(step)` runs before each push.
template <typename Before>
void RunToTheEnd(TestWorker& worker, int64_t steps, const Before& before, BackupOutcome& outcome) {
  for (int64_t step = 0; step < steps;) {
    before(step);
    const auto results = worker.Step(step);
    ASSERT_EQ(results.status(), absl::OkStatus());
    const ExchangeResult& first = results->front();
    for (const ExchangeResult& result : *results) {
      EXPECT_EQ(result.dropped, first.dropped) << "only entire gradients are dropped";
      EXPECT_EQ(result.version, first.version);
      EXPECT_EQ(result.staleness, 0);
    }
    outcome.dropped += first.dropped;
    if (!first.dropped) {
      EXPECT_EQ(first.version, step + 1);
    }
    step = first.version;
    outcome.weights[static_cast<size_t>(step)] = worker.weights;
  }
}

TEST(ExchangeTest, LateBackupWorkersAreDroppedAndContinueWithTheNewestWeights) {
  for (const bool deterministic : {false, true}) {
    const ServerJob job = MakeJob(3, kSizes, {.consistency = "backup:1", .deterministic = deterministic});
    const auto cluster = MakeCluster(3);
    const int64_t steps = 15;
    std::vector<BackupOutcome> outcomes(3, {.weights = std::vector<std::vector<float>>(steps + 1)});
    StepOfTheFastest fastest;
    RunWorkers(job, *cluster, [&](TestWorker& worker) {
      const auto before = [&](int64_t step) {
        fastest.Reach(step);
        if (worker.rank == 2 && step % 2 == 0) fastest.Await(step + 1);  // too late for the step
      };
      RunToTheEnd(worker, steps, before, outcomes[worker.rank]);
      fastest.Reach(steps);
    });
    EXPECT_EQ(cluster->server().WaitUntilOver(Soon()), absl::OkStatus());
    const ServerStats stats = cluster->server().stats();
    std::vector<int64_t> dropped;
    for (const BackupOutcome& outcome : outcomes) dropped.push_back(outcome.dropped);
    EXPECT_GT(dropped[2], 0);
    EXPECT_EQ(stats.dropped_gradients, dropped[0] + dropped[1] + dropped[2]);
    EXPECT_EQ(stats.worker_dropped, dropped);
    EXPECT_EQ(stats.pushes, static_cast<int64_t>(job.buckets.size()) * steps * 2);
    EXPECT_EQ(stats.payload_rx_bytes, job.parameters * sizeof(float) * steps * 2);
    // All workers that got a version got the same weights.
    for (int64_t version = 1; version <= steps; ++version) {
      const std::vector<float>* one = nullptr;
      for (const BackupOutcome& outcome : outcomes) {
        const std::vector<float>& weights = outcome.weights[static_cast<size_t>(version)];
        if (weights.empty()) continue;
        if (one != nullptr) {
          EXPECT_EQ(*one, weights) << "version " << version;
        }
        one = &weights;
      }
    }
  }
}

TEST(ExchangeTest, WithoutSpareWorkersBackupIsSynchronous) {
  for (const int workers : {1, 3}) {
    for (const bool serial : {false, true}) {
      const ServerJob job =
          MakeJob(workers, kSizes, {.consistency = "backup:0", .deterministic = true, .serial = serial});
      const JobResult result = RunJob(job);
      for (int rank = 0; rank < workers; ++rank) EXPECT_EQ(result.weights[rank], TrainAlone(job, kSteps));
      EXPECT_EQ(result.stats[0].dropped_gradients, 0);
    }
  }
}

TEST(ExchangeTest, NoWorkerWaitsForOneThatHasLeft) {
  for (const std::string consistency : {"sync", "async", "ssp:1", "backup:0", "backup:1"}) {
    SCOPED_TRACE(consistency);
    const ServerJob job = MakeJob(3, kSizes, {.consistency = consistency});
    const auto cluster = MakeCluster(3);
    std::vector<std::vector<float>> weights(3);
    RunWorkers(job, *cluster, [&](TestWorker& worker) {
      const int64_t steps = worker.rank == 1 ? 3 : 20;  // worker 1 has less data
      for (int64_t step = 0; step < steps;) ASSERT_EQ(worker.Advance(step), absl::OkStatus());
      weights[worker.rank] = worker.weights;
    });
    EXPECT_EQ(cluster->server().WaitUntilOver(Soon()), absl::OkStatus());
    if (consistency != "async" && consistency != "ssp:1") {
      EXPECT_EQ(weights[0], weights[2]);
    }
  }
}

TEST(ExchangeTest, AsynchronousWorkersThatTakeTurnsHaveStalenessNMinus1) {
  for (const int workers : {1, 2, 3, 4}) {
    const ServerJob job = MakeJob(workers, {1000}, {.consistency = "async"});
    const auto cluster = MakeCluster(workers);
    std::vector<std::unique_ptr<TestWorker>> all;
    for (int rank = 0; rank < workers; ++rank) {
      all.push_back(std::make_unique<TestWorker>(job, rank, cluster->NewClient()));
    }
    ForEachRank(workers, [&](int rank) { ASSERT_EQ(all[rank]->Start(), absl::OkStatus()); });
    const int64_t rounds = 10;
    int64_t sum = 0;
    for (int64_t step = 0; step < rounds; ++step) {
      for (const auto& worker : all) {
        const auto results = worker->Step(step);
        ASSERT_EQ(results.status(), absl::OkStatus());
        EXPECT_EQ((*results)[0].staleness, step == 0 ? worker->rank : workers - 1);
        EXPECT_EQ((*results)[0].version, step * workers + worker->rank + 1);
        sum += (*results)[0].staleness;
      }
    }
    // N - 1, except in the first round, in which r updates precede that of worker r.
    EXPECT_EQ(sum, rounds * workers * (workers - 1) - workers * (workers - 1) / 2);
  }
}

TEST(ExchangeTest, AsynchronousWithOneWorkerEqualsALoopBitForBit) {
  const ServerJob job = MakeJob(1, kSizes, {.consistency = "async"});
  EXPECT_EQ(RunJob(job).weights[0], TrainAlone(job, kSteps));
}

TEST(ExchangeTest, AnAsynchronousReplyIsTheVersionOfItsPush) {
  const ServerJob job = MakeJob(4, {50000}, {.consistency = "async", .optimizer = OptimizerKind::kSgd});
  const auto cluster = MakeCluster(4);
  const auto body = [&](TestWorker& worker) {
    for (int64_t step = 0; step < 50; ++step) {
      const auto result = worker.StepAgain(step, /*samples=*/1);
      ASSERT_EQ(result.status(), absl::OkStatus());
      ASSERT_EQ(worker.weights, std::vector<float>(50000, result->front().version));
    }
  };
  RunWorkers(job, *cluster, body, CountPushes);
}

TEST(ExchangeTest, FetchReturnsTheServersWeights) {
  for (const std::string consistency : {"sync", "async"}) {
    const ServerJob job = MakeJob(2, kSizes, {.consistency = consistency});
    const auto cluster = MakeCluster(2);
    std::vector<std::vector<float>> fetched(2, std::vector<float>(job.parameters));
    std::latch pushed(2);
    RunWorkers(job, *cluster, [&](TestWorker& worker) {
      ASSERT_EQ(worker.Steps(0, 3), absl::OkStatus());
      pushed.arrive_and_wait();
      for (int again = 0; again < 2; ++again) {
        ASSERT_EQ(worker.client->Fetch({fetched[worker.rank].data(), fetched[worker.rank].size()}, Soon()),
                  absl::OkStatus());
      }
      if (consistency == "sync") {
        EXPECT_EQ(fetched[worker.rank], worker.weights);
      }
    });
    EXPECT_EQ(fetched[0], fetched[1]);
    EXPECT_NE(fetched[0], InitialWeights(job));
  }
}

TEST(ExchangeTest, AJobWithoutParametersStartsAndEnds) {
  const ServerJob job = MakeJob(2, {});
  const auto cluster = MakeCluster(2);
  RunWorkers(job, *cluster, [](TestWorker& worker) { EXPECT_EQ(worker.Fetch(), absl::OkStatus()); });
  EXPECT_EQ(cluster->server().WaitUntilOver(Soon()), absl::OkStatus());
}

// Reads a server's weights and optimizer state, and starts another server with them.
TEST_P(Workers, AJobContinuesFromSavedWeightsAndSlots) {
  const auto [workers, serial] = GetParam();
  constexpr int64_t kFirst = 4, kAll = 7;
  for (const OptimizerKind optimizer : kOptimizers) {
    ServerJob job =
        MakeJob(workers, kSizes, {.deterministic = true, .serial = serial, .optimizer = optimizer});
    job.schedule = {.decay = LrDecay::kLinear, .base = .01, .total_samples = 1000};
    const size_t count = static_cast<size_t>(job.parameters);
    std::vector<float> weights(count);
    std::vector<std::vector<float>> slots(OptimizerSlots(optimizer).size(), weights);
    const auto before = MakeCluster(workers), after = MakeCluster(workers);
    RunWorkers(job, *before, [&](TestWorker& worker) {
      ASSERT_EQ(worker.Steps(0, kFirst), absl::OkStatus());
      if (worker.rank == 0) {
        for (size_t slot = 0; slot <= slots.size(); ++slot) {
          std::vector<float>& to = slot > 0 ? slots[slot - 1] : weights;
          const auto kept =
              worker.client->Read({.values = {to.data(), count}, .slot = static_cast<int>(slot)}, Soon());
          ASSERT_TRUE(kept.ok() && *kept) << kept.status();
        }
        EXPECT_EQ(weights, worker.weights);
      }
    });

    job.start_step = kFirst;
    for (int64_t step = 0; step < kFirst; ++step) {
      for (int worker = 0; worker < workers; ++worker) job.start_samples += Samples(worker, step);
    }
    const auto resume = [&](TestWorker& worker) {
      if (worker.rank > 0) return;
      worker.weights = weights;
      for (const auto& slot : slots) worker.slots.emplace_back(slot.data(), slot.size());
    };
    const auto body = [&](TestWorker& worker) {
      EXPECT_EQ(worker.client->status().start_step, kFirst);
      EXPECT_EQ(worker.weights, weights);
      ASSERT_EQ(worker.Steps(kFirst, kAll), absl::OkStatus());
      EXPECT_EQ(worker.weights, TrainAlone(worker.job, kAll));
    };
    RunWorkers(job, *after, body, resume);
  }
}

TEST(ExchangeTest, ASlotThatTheOptimizerLacksIsRejected) {
  const auto cluster = MakeCluster(1);
  TestWorker worker(MakeJob(1, {8}), 0, cluster->NewClient());
  ASSERT_EQ(worker.Start(), absl::OkStatus());
  std::vector<float> values(8);
  EXPECT_FALSE(worker.client->Read({.values = {values.data(), values.size()}, .slot = 3}, Soon()).ok());
}

// Many workers share the staging memory of one push: there is no deadlock, no push is lost or applied twice,
// and no more memory is used.

struct Case {
  const char* consistency;
  bool serial;
  DType wire;
};

class WindowTest : public ::testing::TestWithParam<Case> {};

TEST_P(WindowTest, ManyWorkersShareTheMemoryOfOnePush) {
  constexpr int kWorkers = 12;
  constexpr int64_t kSteps = 6;
  const std::vector<size_t> sizes = {kChunkBytes / sizeof(float) + 10, 30000, 100};
  const ServerJob job = MakeJob(kWorkers, sizes,
                                {.consistency = GetParam().consistency,
                                 .serial = GetParam().serial,
                                 .wire = GetParam().wire,
                                 .optimizer = OptimizerKind::kSgd});
  const auto cluster = MakeCluster(ServerOptions{.workers = kWorkers, .staging_bytes = 1});
  const auto body = [&](TestWorker& worker) {
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto results = worker.StepAgain(step, 1);
      ASSERT_EQ(results.status(), absl::OkStatus());
      for (const Bucket& bucket : job.buckets) {
        const std::vector<float> seen(worker.weights.begin() + bucket.first,
                                      worker.weights.begin() + bucket.first + bucket.count);
        ASSERT_EQ(seen, std::vector<float>(bucket.count, (*results)[bucket.index].version));
      }
    }
    ASSERT_EQ(worker.client->Barrier(2, Soon()).status(), absl::OkStatus());
    ASSERT_EQ(worker.Fetch(), absl::OkStatus());
    EXPECT_EQ(worker.weights, std::vector<float>(worker.weights.size(), kWorkers * kSteps));
  };
  RunWorkers(job, *cluster, body, CountPushes);
  const ServerStats stats = cluster->server().stats();
  EXPECT_EQ(stats.pushes, static_cast<int64_t>(kWorkers * kSteps * sizes.size()));
  const size_t whole = static_cast<size_t>(job.parameters) * sizeof(float);
  EXPECT_LE(stats.staging_peak_bytes, job.serial ? whole : sizes[0] * sizeof(float));
}

INSTANTIATE_TEST_SUITE_P(
    All, WindowTest,
    ::testing::Values(Case{"async", false, DType::kFloat32}, Case{"ssp:1", false, DType::kFloat32},
                      Case{"ssp:3", true, DType::kFloat32}, Case{"async", true, DType::kFloat32},
                      Case{"ssp:2", false, DType::kBFloat16}, Case{"async", false, DType::kFloat16}));

}  // namespace
}  // namespace psring
