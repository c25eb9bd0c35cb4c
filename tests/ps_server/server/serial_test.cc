// When a serial server sends weights (ps_server/modes.md).
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/devices/make_device.h"
#include "ps_server/server/parameter_server.h"
#include "tests/ps_server/test_job.h"

namespace psring {
namespace {

constexpr size_t kInBucket = 10;  // elements of a bucket

// The buckets of the answers that a worker has got.
class Answered : public ReplySink {
 public:
  void Deliver(Reply reply) override {
    const auto* const answer = std::get_if<message::Answer>(&reply.message);
    if (answer == nullptr) return;
    MutexLock lock(mutex_);
    buckets_.push_back(answer->bucket);
  }
  void Proceed() override {}
  void Abort(const absl::Status&) override {}
  std::vector<int> Take() {
    MutexLock lock(mutex_);
    return std::exchange(buckets_, {});
  }

 private:
  Mutex mutex_;
  std::vector<int> buckets_ ABSL_GUARDED_BY(mutex_);
};

class SerialTest : public ::testing::Test {
 protected:
  void Begin(const std::string& consistency, bool serial = true) {
    job_ = MakeJob(2, {kInBucket, kInBucket});
    job_.consistency = consistency;
    job_.serial = serial;
    server_ = std::make_unique<ParameterServer>(
        *device_, ServerOptions{.workers = 2, .worker_timeout = absl::Seconds(60)});
    lane_ = *server_->NewLane();
    for (const int worker : {0, 1}) {
      ASSERT_EQ(Join(worker, /*again=*/false), absl::OkStatus());
    }
    const std::vector<float> initial(kInBucket, 1);
    for (const int bucket : {0, 1}) Send(0, message::InitialWeights{.bucket = bucket}, initial);
  }
  absl::Status Join(int worker, bool again) {
    answered_[worker] = std::make_shared<Answered>();
    return server_->Join({.worker = worker, .job = job_, .session = 7u + worker, .again = again},
                         answered_[worker]);
  }
  void Push(int worker, int bucket, int64_t step = 0) {
    Send(worker,
         message::Gradient{
             .bucket = bucket, .step = step, .samples = 1, .incarnation = server_->incarnation()},
         std::vector<float>(kInBucket, 1));
  }
  void Send(int worker, const message::ToServer& message, const std::vector<float>& values) {
    const Bytes bytes = std::as_bytes(std::span(values));
    ASSERT_EQ(server_->Receive(worker, answered_[worker].get(), message, {.pieces = {&bytes, 1}}, *lane_),
              Receipt::kTaken);
  }
  std::vector<int> AnswersOf(int worker) { return answered_[worker]->Take(); }

  using Buckets = std::vector<int>;
  std::unique_ptr<Device> device_ = *MakeDevice("cpu");
  ServerJob job_;
  std::shared_ptr<Answered> answered_[2];
  std::unique_ptr<ParameterServer> server_;
  std::optional<Lane> lane_;
};

TEST_F(SerialTest, SynchronousWeightsWaitForAllBucketsOfAllWorkers) {
  for (const bool serial : {false, true}) {
    Begin("sync", serial);
    for (const int64_t step : {0, 1, 2}) {
      Push(0, 0, step);
      Push(0, 1, step);
      Push(1, 0, step);
      // Bucket 0 is updated, and all that worker 0 has to send has arrived.
      EXPECT_EQ(AnswersOf(0), serial ? Buckets() : Buckets{0}) << step;
      EXPECT_EQ(AnswersOf(1), serial ? Buckets() : Buckets{0}) << step;
      Push(1, 1, step);
      EXPECT_EQ(AnswersOf(0), (serial ? Buckets{0, 1} : Buckets{1})) << step;
      EXPECT_EQ(AnswersOf(1), (serial ? Buckets{0, 1} : Buckets{1})) << step;
    }
    EXPECT_EQ(server_->stats().pushes, 12);
  }
}

TEST_F(SerialTest, AsynchronousWeightsWaitForTheWorkersOwnGradients) {
  Begin("async");
  for (const int64_t step : {0, 1}) {
    Push(0, 0, step);
    EXPECT_EQ(AnswersOf(0), Buckets());
    Push(0, 1, step);
    EXPECT_EQ(AnswersOf(0), (Buckets{0, 1}));
  }
  EXPECT_EQ(AnswersOf(1), Buckets());
}

TEST_F(SerialTest, ARepeatedPushCountsOnceForItsStep) {
  Begin("sync");
  Push(0, 0);
  Push(0, 1);
  Push(1, 0);
  server_->Disconnected(0, answered_[0].get(), "cut");
  ASSERT_EQ(Join(0, /*again=*/true), absl::OkStatus());
  Push(0, 0);  // answered before, but the answer did not leave
  Push(0, 1);
  EXPECT_EQ(AnswersOf(0), Buckets());
  Push(1, 1);
  EXPECT_EQ(AnswersOf(0), (Buckets{0, 1}));
  // The weights were lost again, and are sent again at once.
  server_->Disconnected(0, answered_[0].get(), "cut");
  ASSERT_EQ(Join(0, /*again=*/true), absl::OkStatus());
  Push(0, 1);
  EXPECT_EQ(AnswersOf(0), Buckets{1});
  // The next step is held as a whole.
  Push(0, 0, 1);
  Push(0, 1, 1);
  Push(1, 0, 1);
  EXPECT_EQ(AnswersOf(0), Buckets());
  Push(1, 1, 1);
  EXPECT_EQ(AnswersOf(0), (Buckets{0, 1}));
  EXPECT_EQ(server_->stats().pushes, 8) << "each once";
}

}  // namespace
}  // namespace psring
