#include "ps_server/round_limits.h"

#include <cmath>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace psring {
namespace {

constexpr absl::Duration kSoon = absl::Seconds(10);

// What worker `worker` pushes in element `i`; small whole numbers, so that sums are exact.
float Gradient(int worker, size_t i) { return static_cast<float>(worker + 1 + static_cast<int>(i % 5)); }

class RoundLimitTest : public testing::TestWithParam<std::tuple<int, size_t>> {};

TEST_P(RoundLimitTest, ARawRoundIsTheRealOne) {
  const auto [workers, count] = GetParam();
  const auto server = RoundLimitServer::Start("127.0.0.1", workers, kSoon);
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<std::thread> threads;
  std::vector<absl::Status> outcomes(workers);
  std::vector<std::vector<float>> weights(workers, std::vector<float>(count, 77));
  for (int worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&, worker, count = count] {
      auto client = RoundLimitClient::Connect((*server)->address(), worker, kSoon);
      outcomes[worker] = client.status();
      if (!client.ok()) return;
      std::vector<float> gradient(count);
      for (size_t i = 0; i < count; ++i) gradient[i] = Gradient(worker, i);
      // A fused round between two raw ones changes nothing of theirs.
      for (const RoundLimit kind : {RoundLimit::kRaw, RoundLimit::kFused, RoundLimit::kRaw}) {
        const absl::Status status =
            client->Run(kind, {gradient.data(), count}, {weights[worker].data(), count});
        if (outcomes[worker].ok()) outcomes[worker] = status;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int worker = 0; worker < workers; ++worker) {
    ASSERT_TRUE(outcomes[worker].ok()) << outcomes[worker];
    int wrong = 0;
    for (size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int other = 0; other < workers; ++other) sum += Gradient(other, i);
      // Each worker's two gradients are in the mean; the fused round's memory is apart.
      if (std::abs(weights[worker][i] + 2 * sum / static_cast<float>(workers)) > 1e-4f) ++wrong;
    }
    EXPECT_EQ(wrong, 0) << "worker " << worker;
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, RoundLimitTest,
                         testing::Combine(testing::Values(1, 2, 4),
                                          testing::Values<size_t>(1, 1000, (64 << 10) * 3 + 5)));

TEST(RoundLimitServerTest, WhoComesAloneHearsOfItInTime) {
  const auto server = RoundLimitServer::Start("127.0.0.1", 2, absl::Milliseconds(300));
  ASSERT_TRUE(server.ok()) << server.status();
  auto client = RoundLimitClient::Connect((*server)->address(), 0, kSoon);
  ASSERT_TRUE(client.ok()) << client.status();
  std::vector<float> gradient(10), weights(10);
  const absl::Time begin = absl::Now();
  EXPECT_FALSE(client->Run(RoundLimit::kRaw, {gradient.data(), 10}, {weights.data(), 10}).ok());
  EXPECT_LT(absl::Now() - begin, kSoon / 2);
}

}  // namespace
}  // namespace psring
