// Many workers share the staging memory of one push: there is no deadlock, no push is lost or applied twice,
// and no more memory is used.
#include <gtest/gtest.h>

#include "tests/ps_server/cluster.h"
#include "tests/ps_server/test_job.h"

namespace psring {
namespace {

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
