// Errors before a gradient reaches the client of the parameter server.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "common/base/deadline.h"
#include "common/device_factory/make_ops.h"
#include "ps_server/client/ps_client.h"
#include "tests/common/ops/reference_ops.h"
#include "trainer/strategies/strategies.h"

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
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const std::unique_ptr<Ops> ops = MakeReferenceOps();
  const std::unique_ptr<Stream> compute = device->NewStream(StreamKind::kCompute, "compute");
  Trace trace(0);
  SilentClient client;
  const std::vector<Bucket> buckets = {{0, 0, 16}, {1, 16, 16}};
  const Buffer weights = *device->Allocate(32 * sizeof(float)),
               gradient = *device->Allocate(32 * sizeof(float));
  {
    absl::StatusOr<Strategy> made =
        MakeParameterServer({.device = *device,
                             .ops = *ops,
                             .compute = *compute,
                             .trace = trace,
                             .buckets = buckets,
                             .servers = {.client = &client, .consistency = "sync"}});
    ASSERT_EQ(made.status(), absl::OkStatus());
    SyncStrategy& strategy = *made->sync;
    ASSERT_EQ(
        strategy.Start({.weights = HostView::Of(weights.span()), .gradient = HostView::Of(gradient.span())})
            .status(),
        absl::OkStatus());
    ASSERT_EQ(strategy.BeginStep({.samples = 1, .global_samples = 1}), absl::OkStatus());
    strategy.GradientReady(buckets, Event(std::make_shared<FailedPass>()));
    EXPECT_EQ(strategy.FinishStep().status().message(), "the backward pass failed");
  }
  // A strategy with exchanges in flight aborts them in its destructor and waits for their replies.
  EXPECT_FALSE(client.aborted);
}

}  // namespace
}  // namespace psring
