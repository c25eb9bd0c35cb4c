// Errors before a gradient reaches the client of the parameter server.
#include <gtest/gtest.h>

#include <memory>

#include "common/base/deadline.h"
#include "ps_server/client/ps_client.h"
#include "tests/trainer/strategies/strategy_rank.h"

namespace psring {
namespace {

// Answers every push with the error "pushed".
class SilentClient : public PsClient {
 public:
  absl::Status Pull(int64_t, absl::Span<const RowPull>, MonotonicTime) override { return absl::OkStatus(); }
  void Push(int64_t, int64_t, absl::Span<const RowPush>) override {}
  absl::Status Put(const RowPut&, MonotonicTime) override { return absl::OkStatus(); }
  absl::Status Start(int, const ServerJob&, const WorkerBuffers&, MonotonicTime) override {
    return absl::OkStatus();
  }
  void PushPull(const Exchange&, Done done) override { done(absl::UnavailableError("pushed")); }
  absl::StatusOr<std::optional<int64_t>> Barrier(int, MonotonicTime) override { return std::nullopt; }
  absl::StatusOr<bool> Read(const ReadRequest&, MonotonicTime) override { return true; }
  absl::Status Leave(MonotonicTime) override { return absl::OkStatus(); }
  void Abort(absl::Status) override { aborted = true; }
  ClientStatus status() const override { return {.payload = "grpc"}; }

  bool aborted = false;
};

// The end of a backward pass that failed.
class FailedPass : public Event::State {
 public:
  bool Happened() const override { return false; }
  absl::Status Wait(MonotonicTime) override { return absl::InternalError("the backward pass failed"); }
};

TEST(ServerLane, BucketsThatWereNeverPushedAreNotAwaited) {
  SilentClient client;
  {
    StrategyRank rank(*FindStrategy("ps-sync"), 0, /*workers=*/1, /*group=*/nullptr, &client, {});
    SyncStrategy& strategy = *rank.strategy.sync;
    ASSERT_EQ(strategy.Start(rank.State()).status(), absl::OkStatus());
    ASSERT_EQ(strategy.BeginStep({.samples = 1, .global_samples = 1}), absl::OkStatus());
    strategy.GradientReady(kOddBuckets, Event(std::make_shared<FailedPass>()));
    EXPECT_EQ(strategy.FinishStep().status().message(), "the backward pass failed");
  }
  // A strategy with exchanges in flight aborts them in its destructor and waits for their replies.
  EXPECT_FALSE(client.aborted);
}

}  // namespace
}  // namespace psring
