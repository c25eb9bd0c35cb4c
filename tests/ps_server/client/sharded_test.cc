// Jobs with several servers, with every client; exchange_test.cc tests their results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "ps_server/client/ps_client.h"
#include "ps_server/protocol/sharding.h"
#include "tests/eventually.h"
#include "tests/ps_server/cluster.h"
#include "tests/ps_server/test_job.h"

namespace psring {
namespace {

using ::testing::HasSubstr;

// Buckets with fewer elements than servers, so that slices are empty.
const std::vector<size_t> kShardedSizes = {3, 1000, 1, 30'035};

class Sharded : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  int workers() const { return std::get<0>(GetParam()); }
  int servers() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Servers, Sharded,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::Values(1, 2, 3)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "WorkersOn", std::get<1>(info.param));
                         });

TEST_P(Sharded, EachServerKeepsItsOwnVersionsAndStaleness) {
  for (const std::string consistency : {"async", "ssp:1"}) {
    const ServerJob job = MakeJob(workers(), kShardedSizes, {.consistency = consistency});
    const Servers servers(workers(), this->servers());
    std::atomic<int64_t> reported = 0;
    RunWorkers(job, servers, [&](TestWorker& worker) {
      for (int64_t step = 0; step < 10; ++step) {
        const auto results = worker.Step(step);
        ASSERT_EQ(results.status(), absl::OkStatus());
        for (const ExchangeResult& result : *results) {
          if (servers.count() == 1) {
            reported += result.staleness;
            continue;
          }
          ASSERT_EQ(result.server_staleness.size(), servers.count());
          reported +=
              std::accumulate(result.server_staleness.begin(), result.server_staleness.end(), int64_t{0});
          EXPECT_EQ(result.staleness, std::ranges::max(result.server_staleness));
          if (consistency != "async") {
            EXPECT_LE(result.staleness, 3 * (workers() - 1));
          }
        }
      }
    });
    int64_t counted = 0;
    for (const ServerStats& stats : servers.Ends()) {
      EXPECT_EQ(stats.pushes, static_cast<int64_t>(10 * workers() * kShardedSizes.size()));
      counted +=
          std::accumulate(stats.worker_staleness_sum.begin(), stats.worker_staleness_sum.end(), int64_t{0});
    }
    EXPECT_EQ(reported, counted);
  }
}

// If the bound is below the norm, the update has the norm of the bound; otherwise clipping has no effect.
TEST_P(Sharded, ClippingScalesTheMeanGradientToTheBound) {
  for (const std::string consistency : {"sync", "backup:0"}) {
    ServerJob job = MakeJob(workers(), kShardedSizes,
                            {.consistency = consistency, .deterministic = true, .clip_norm = 3});
    const auto weights = RunJob(job, servers()).weights;
    const std::vector<float> expected = TrainAlone(job, kSteps);
    for (int rank = 0; rank < workers(); ++rank) EXPECT_EQ(weights[rank], expected) << consistency;

    job.optimizer.kind = OptimizerKind::kSgd;
    job.schedule.base = 1;
    const auto one_step = RunJob(job, servers(), 1).weights;
    const std::vector<float> before = InitialWeights(job);
    double moved = 0;
    for (size_t i = 0; i < one_step[0].size(); ++i) {
      const double by = double{one_step[0][i]} - before[i];
      moved += by * by;
    }
    EXPECT_NEAR(std::sqrt(moved), 3, 1e-5);

    job.clip_norm = 1e6;
    const auto not_clipped = RunJob(job, servers(), 1).weights;
    job.clip_norm = 0;
    EXPECT_EQ(not_clipped[0], TrainAlone(job, 1));
  }
}

TEST_P(Sharded, Gradients16BitAreHalfTheBytesAndAddedInFloat32) {
  for (const DType wire : {DType::kBFloat16, DType::kFloat16}) {
    for (const std::string consistency : {"sync", "async"}) {
      for (const bool deterministic : {false, true}) {
        const ServerJob job = MakeJob(workers(), kShardedSizes,
                                      {.consistency = consistency,
                                       .deterministic = deterministic && consistency == "sync",
                                       .wire = wire,
                                       .optimizer = OptimizerKind::kSgd,
                                       .rate = 1});
        const std::vector<float> before = InitialWeights(job);
        const Servers servers(workers(), this->servers());
        RunWorkers(job, servers, [&](TestWorker& worker) {
          // Their sums are exact only in float32: 1.0078125 follows 1 in bfloat16.
          worker.gradient.assign(job.parameters, worker.rank == 0 ? 1.0078125f : 1024.f);
          ASSERT_EQ(worker.StepAgain(0, /*samples=*/1).status(), absl::OkStatus());
          EXPECT_EQ(worker.client->status().traffic.payload_tx_bytes, job.parameters * 2);
          EXPECT_EQ(worker.client->status().traffic.payload_rx_bytes, job.parameters * 4);
          if (consistency == "sync") {
            const float sum = 1.0078125f + 1024.f * static_cast<float>(workers() - 1);
            const float mean = sum * (1.0f / static_cast<float>(workers()));
            for (size_t i = 0; i < worker.weights.size(); ++i) {
              ASSERT_EQ(worker.weights[i], before[i] - mean) << i;
            }
          }
        });
        uint64_t received = 0;
        for (const ServerStats& stats : servers.Ends()) received += stats.payload_rx_bytes;
        EXPECT_EQ(received, static_cast<uint64_t>(job.parameters) * 2 * workers());
      }
    }
  }
}

TEST(StalenessTest, AStalePushIsAppliedWithItsRateDividedByStaleness) {
  ServerJob job = MakeJob(2, {100}, {.consistency = "async"});
  job.staleness_lr = true;
  job.optimizer.kind = OptimizerKind::kSgd;
  job.schedule.base = 1;
  const Servers servers(2, 2);
  TestWorker late(job, 0, servers.NewClient());
  TestWorker early(job, 1, servers.NewClient());
  ForEachRank(2, [&](int rank) { ASSERT_EQ((rank == 0 ? late : early).Start(), absl::OkStatus()); });
  early.gradient.assign(100, 0);
  for (int64_t step = 0; step < 4; ++step) ASSERT_EQ(early.StepAgain(step, 1).status(), absl::OkStatus());
  late.gradient.assign(100, 1);
  float expected = InitialWeights(job)[7];
  for (const int staleness : {4, 0}) {
    const auto result = late.StepAgain(staleness == 4 ? 0 : 1, 1);
    ASSERT_EQ(result.status(), absl::OkStatus());
    EXPECT_EQ(result->front().staleness, staleness);
    expected -= staleness == 4 ? .25f : 1.f;
    EXPECT_EQ(late.weights[7], expected);
  }
}

TEST(ShardedTest, FetchReturnsTheWeightsOfAllServers) {
  ServerJob job = MakeJob(2, kShardedSizes);
  const Servers servers(2, 3);
  RunWorkers(job, servers, [&](TestWorker& worker) {
    ASSERT_EQ(worker.Step(0).status(), absl::OkStatus());
    std::vector<float> fetched(job.parameters);
    ASSERT_EQ(worker.client->Fetch({fetched.data(), fetched.size()}, Soon()), absl::OkStatus());
    EXPECT_EQ(fetched, worker.weights);
  });
}

// Backup workers that push 2^rank in all elements, so that the change of a weight shows whose gradients it
// contains.
ServerJob UniformJob(int workers, int spare) {
  return MakeJob(
      workers, {40, 1000, 5, 70'000},
      {.consistency = absl::StrCat("backup:", spare), .optimizer = OptimizerKind::kSgd, .rate = 1});
}

// One of them, up to step `last`. The spare workers come too late for every third step. `see(results, step)`:
// of each push, and the step after it.
template <typename See>
void TrainLate(TestWorker& worker, int spare, int64_t last, StepOfTheFastest& fastest, const See& see) {
  worker.gradient.assign(worker.job.parameters, static_cast<float>(1 << worker.rank));
  for (int64_t step = 0; step < last;) {
    fastest.Reach(step);
    if (worker.rank >= worker.job.workers - spare && step % 3 == 0) fastest.Await(step + 1);
    const auto results = worker.StepAgain(step, /*samples=*/1);
    ASSERT_EQ(results.status(), absl::OkStatus());
    step = results->front().dropped ? results->front().version : step + 1;
    see(*results, step);
    if (testing::Test::HasFatalFailure()) return;
  }
  fastest.Reach(last);
}

// With backup workers each update contains the same workers' gradients on all servers: those that the first
// server has admitted, in whatever order its verdicts reach the others.
TEST(ShardedBackup, AllServersApplyTheSameGradients) {
  constexpr int64_t kLast = 30;
  for (const auto& [workers, spare] : {std::pair{3, 1}, {4, 2}, {2, 0}}) {
    const ServerJob job = UniformJob(workers, spare);
    const std::vector<float> before = InitialWeights(job);
    const Servers servers(workers, 3);
    std::atomic<int64_t> dropped = 0;
    StepOfTheFastest fastest;
    std::vector<std::vector<float>> weights(workers);
    RunWorkers(job, servers, [&](TestWorker& worker) {
      TrainLate(worker, spare, kLast, fastest, [&](const std::vector<ExchangeResult>& results, int64_t step) {
        for (const ExchangeResult& result : results) {
          EXPECT_EQ(result.dropped, results.front().dropped);
          EXPECT_EQ(result.version, results.front().version);
        }
        if (results.front().dropped) ++dropped;
        // All elements change equally, unless the weights are newer than the verdict; then the gradient
        // computed on them is dropped.
        if (!results.front().dropped) {
          const float moved = worker.weights[0] - before[0];
          for (size_t i = 0; i < worker.weights.size(); i += 997) {
            ASSERT_NEAR(worker.weights[i] - before[i], moved, 1e-3) << "step " << step;
          }
        }
      });
      weights[worker.rank] = worker.weights;
    });
    EXPECT_EQ(dropped > 0, spare > 0);
    for (const ServerStats& stats : servers.Ends()) {
      EXPECT_EQ(stats.pushes, static_cast<int64_t>(kLast * (workers - spare) * job.buckets.size()));
      EXPECT_EQ(stats.dropped_gradients, dropped);
    }
    for (int rank = 1; rank < workers; ++rank) EXPECT_EQ(weights[rank], weights[0]);
  }
}

// All elements of a gradient are equal, so a clipped update changes each weight equally.
TEST(ShardedBackup, AClippedUpdateHasTheNormOfTheBound) {
  constexpr int64_t kLast = 20;
  for (const int count : {1, 3}) {
    for (const auto& [workers, spare] : {std::pair{3, 1}, {4, 2}}) {
      ServerJob job = UniformJob(workers, spare);
      job.clip_norm = 100;
      const double per_step = job.clip_norm / std::sqrt(static_cast<double>(job.parameters));
      const std::vector<float> before = InitialWeights(job);
      const Servers servers(workers, count);
      StepOfTheFastest fastest;
      RunWorkers(job, servers, [&, spare = spare](TestWorker& worker) {
        TrainLate(worker, spare, kLast, fastest,
                  [&](const std::vector<ExchangeResult>& results, int64_t step) {
                    if (results.front().dropped) return;
                    for (size_t i = 0; i < worker.weights.size(); i += 997) {
                      ASSERT_NEAR(worker.weights[i], before[i] - per_step * static_cast<double>(step), 1e-4);
                    }
                  });
      });
      servers.Ends();
    }
  }
}

TEST(ShardedTest, AWorkerAtTheWrongServerIsRejectedWithAMessage) {
  const ServerJob job = MakeJob(1, {1000});
  const Servers servers(1, 2);
  std::vector<std::unique_ptr<OneServerClient>> crossed;
  crossed.push_back(servers.clusters[1]->NewClient());
  crossed.push_back(servers.clusters[0]->NewClient());
  TestWorker worker(job, 0, MakeShardedPsClient(std::move(crossed)));
  const absl::Status status = worker.Start();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("takes this for server"));
}

TEST(ShardedTest, TheLossOfOneServerEndsTheJobAndIsNamed) {
  const ServerJob job = MakeJob(2, {1000, 1000});
  const Servers servers(2, 3);
  const MonotonicTime begin = MonotonicNow();
  StartWorkers(job, servers, [&](TestWorker& worker) {
    absl::Status status = worker.Step(0).status();
    if (worker.rank == 0) {
      ASSERT_EQ(status, absl::OkStatus());
      servers.server(1).Abort(
          absl::InternalError("the disk is full"));  // the other may still be in its step 0
    }
    for (int64_t step = 1; status.ok() && step < 1000; ++step) status = worker.Step(step).status();
    EXPECT_THAT(std::string(status.message()),
                ::testing::AnyOf(HasSubstr("the disk is full"), HasSubstr("lost")));
    EXPECT_THAT(std::string(status.message()), HasSubstr(" of 3: "));
  });
  for (int server = 0; server < 3; ++server) EXPECT_FALSE(servers.server(server).WaitUntilOver(Soon())->ok());
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(25)) << "before any timeout";
}

// Each server loses the worker independently; only one of them has its complete gradient.
TEST(ShardedTest, TheOthersContinueWithoutALostWorkerWhichCannotRejoin) {
  for (const auto& [consistency, on_worker_loss] : {std::pair("sync", OnWorkerLoss::kContinue),
                                                    {"async", OnWorkerLoss::kByMode},
                                                    {"ssp:1", OnWorkerLoss::kByMode}}) {
    SCOPED_TRACE(consistency);
    const ServerJob job = MakeJob(3, {1000, 300}, {.consistency = consistency});
    const Servers servers(3, 2, on_worker_loss);
    std::vector<std::vector<float>> weights(3);
    ForEachRank(3, [&](int rank) {
      if (rank == 2) {  // joins each server as a sharded client does, and pushes to the first one only
        std::vector<std::unique_ptr<TestWorker>> halves(2);
        const auto slices = CutBuckets(job.buckets, 2);
        ForEachRank(2, [&](int server) {
          const ServerJob shard = ShardOf(job, slices[static_cast<size_t>(server)], server, 2);
          halves[server] = std::make_unique<TestWorker>(shard, 2, servers.clusters[server]->NewClient());
          ASSERT_EQ(halves[server]->Start(), absl::OkStatus());
        });
        EXPECT_EQ(halves[0]->Step(0).status(), absl::OkStatus());
        return;
      }
      TestWorker worker(job, rank, servers.NewClient());
      ASSERT_EQ(worker.Start(), absl::OkStatus());
      ASSERT_EQ(worker.Steps(0, 6), absl::OkStatus());
      for (int server = 0; server < 2; ++server) {
        // Asynchronous workers may have finished before the loss is noticed.
        EXPECT_TRUE(Eventually([&] { return !servers.server(server).stats().lost_workers.empty(); }));
      }
      TestWorker again(job, 2, servers.NewClient());
      EXPECT_THAT(std::string(again.Start().message()),
                  HasSubstr("was lost; it cannot join several servers again"));
      ASSERT_EQ(worker.client->Leave(Soon()), absl::OkStatus());
      weights[rank] = worker.weights;
    });
    const std::vector<ServerStats> stats = servers.Ends();
    for (int server = 0; server < 2; ++server) {
      EXPECT_EQ(stats[server].lost_workers, std::vector<int64_t>{2});
      EXPECT_EQ(stats[server].pushes, 2 * 2 * 6 + (server == 0 ? 2 : 0));
    }
    if (consistency == std::string("sync")) {
      EXPECT_EQ(weights[0], weights[1]);
    }
  }
}

}  // namespace
}  // namespace psring
