// A server that has memory for one push at a time, called with the chunks of its workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/deadline.h"
#include "common/devices/make_device.h"
#include "ps_server/server/parameter_server.h"
#include "tests/eventually.h"
#include "tests/ps_server/test_job.h"

namespace psring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kTwoChunks = kChunkBytes / sizeof(float) + 10;

// A worker that reads its answers only in Take.
class Receiver : public ReplySink {
 public:
  void Deliver(Reply reply) override {
    if (!std::holds_alternative<message::Answer>(reply.message)) return;
    MutexLock lock(mutex_);
    replies_.push_back(std::move(reply));
  }
  void Proceed() override {
    MutexLock lock(mutex_);
    may_proceed_ = true;
    changed_.NotifyAll();
  }
  void Abort(const absl::Status& why) override {
    MutexLock lock(mutex_);
    end_ = why;
    changed_.NotifyAll();
  }

  // False: not within ten seconds.
  bool AwaitProceed() {
    MutexLock lock(mutex_);
    const MonotonicTime deadline = MonotonicNow() + absl::Seconds(10);
    while (!may_proceed_ && MonotonicNow() < deadline) changed_.WaitUntil(mutex_, deadline);
    return std::exchange(may_proceed_, false);
  }
  std::string AwaitEnd() {
    MutexLock lock(mutex_);
    const MonotonicTime deadline = MonotonicNow() + absl::Seconds(10);
    while (end_.ok() && MonotonicNow() < deadline) changed_.WaitUntil(mutex_, deadline);
    return std::string(end_.message());
  }
  std::vector<Reply> Take() {
    MutexLock lock(mutex_);
    return std::exchange(replies_, {});
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool may_proceed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
  std::vector<Reply> replies_ ABSL_GUARDED_BY(mutex_);
};

class StagedPushesTest : public ::testing::Test {
 protected:
  void Begin(int workers, const std::string& consistency, ServerOptions options = {}, bool serial = false) {
    job_ = MakeJob(workers, {kTwoChunks, 100});
    job_.consistency = consistency;
    job_.serial = serial;
    options.workers = workers;
    options.staging_bytes = 1;  // rounded up to one bucket
    server_ = std::make_unique<ParameterServer>(*device_, options);
    lane_ = *server_->NewLane();
    gradient_.assign(kTwoChunks, 1);
    for (int worker = 0; worker < workers; ++worker) {
      inboxes_.push_back(std::make_shared<Receiver>());
      ASSERT_EQ(server_->Join({.worker = worker, .job = job_}, inboxes_.back()), absl::OkStatus());
    }
    for (const Bucket& bucket : job_.buckets) {
      for (size_t offset = 0; offset < bucket.count * sizeof(float); offset += kChunkBytes) {
        Send(0, bucket.index, offset, message::InitialWeights{.bucket = bucket.index, .offset = offset});
      }
    }
  }
  Receipt Send(int worker, int bucket, size_t offset, const message::ToServer& message) {
    const size_t bytes = job_.buckets[bucket].count * sizeof(float);
    const Bytes chunk = std::as_bytes(std::span(gradient_)).subspan(offset, ChunkLength(bytes, offset));
    return server_->Receive(worker, inboxes_[worker].get(), message, {.pieces = {&chunk, 1}}, *lane_);
  }
  Receipt SendChunk(int worker, int64_t step, int bucket = 0, size_t offset = 0) {
    return Send(worker, bucket, offset,
                message::Gradient{.bucket = bucket,
                                  .offset = offset,
                                  .step = step,
                                  .samples = 1,
                                  .incarnation = server_->incarnation()});
  }
  size_t BucketBytes() const { return kTwoChunks * sizeof(float); }

  std::unique_ptr<Device> device_ = *MakeDevice(PSRING_TEST_DEVICE);
  ServerJob job_;
  std::vector<float> gradient_;
  std::vector<std::shared_ptr<Receiver>> inboxes_;
  std::unique_ptr<ParameterServer> server_;
  std::optional<Lane> lane_;
};

TEST_F(StagedPushesTest, APushWaitsUntilTheStagedOneIsAnsweredAndRead) {
  Begin(2, "async");
  EXPECT_EQ(SendChunk(0, 0), Receipt::kTaken);
  EXPECT_EQ(SendChunk(1, 0), Receipt::kNotYet);
  EXPECT_EQ(SendChunk(0, 0, 0, kChunkBytes), Receipt::kTaken);
  EXPECT_EQ(SendChunk(1, 0), Receipt::kNotYet) << "the answer uses the memory of the gradient";
  EXPECT_EQ(inboxes_[0]->Take().size(), 1u);
  EXPECT_TRUE(inboxes_[1]->AwaitProceed());
  EXPECT_EQ(SendChunk(1, 0), Receipt::kTaken);
  EXPECT_EQ(SendChunk(1, 0, 0, kChunkBytes), Receipt::kTaken);
  EXPECT_EQ(server_->stats().staging_peak_bytes, BucketBytes());
  EXPECT_EQ(server_->stats().pushes, 2);
}

TEST_F(StagedPushesTest, AnAnswerToSeveralWorkersIsOneCopyUntilAllHaveReadIt) {
  Begin(3, "ssp:1");
  const auto push = [this](int worker, int64_t step) {
    ASSERT_EQ(SendChunk(worker, step), Receipt::kTaken);
    ASSERT_EQ(SendChunk(worker, step, 0, kChunkBytes), Receipt::kTaken);
  };
  for (int worker = 0; worker < 3; ++worker) {
    push(worker, 0);
    inboxes_[worker]->Take();
  }
  for (const int worker : {0, 1}) {
    push(worker, 1);
    inboxes_[worker]->Take();
    push(worker, 2);  // waits for worker 2 without using memory
    EXPECT_TRUE(inboxes_[worker]->Take().empty());
  }
  push(2, 1);
  const auto first = inboxes_[0]->Take();
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(inboxes_[1]->Take().size(), 1u);
  EXPECT_EQ(inboxes_[2]->Take().size(), 1u);
  EXPECT_EQ(SendChunk(2, 2), Receipt::kNotYet) << "worker 0 still reads";
  EXPECT_EQ(server_->stats().staging_peak_bytes, BucketBytes());
}

TEST_F(StagedPushesTest, TheMemoryOfADisconnectedWorkerIsAvailableToOthers) {
  for (const bool in_line : {false, true}) {
    inboxes_.clear();
    Begin(3, "async", {.worker_timeout = absl::Seconds(60)});
    ASSERT_EQ(SendChunk(0, 0), Receipt::kTaken);
    ASSERT_EQ(SendChunk(1, 0), Receipt::kNotYet);
    ASSERT_EQ(SendChunk(2, 0), Receipt::kNotYet);
    if (in_line) server_->Disconnected(1, inboxes_[1].get(), "cut");
    server_->Disconnected(0, inboxes_[0].get(), "cut");
    const int next = in_line ? 2 : 1;
    EXPECT_TRUE(inboxes_[next]->AwaitProceed());
    EXPECT_EQ(SendChunk(next, 0), Receipt::kTaken);
  }
}

TEST_F(StagedPushesTest, APushInTheMiddleOfAnotherIsRejected) {
  Begin(1, "async");
  EXPECT_EQ(SendChunk(0, 0), Receipt::kTaken);
  SendChunk(0, 0, 1);
  EXPECT_EQ(inboxes_[0]->AwaitEnd(),
            "worker 0, bucket 1: a push in the middle of that of bucket 0 of step 0");
}

TEST_F(StagedPushesTest, TheTimeoutNamesTheWorkerThatUsesTheMemory) {
  const ServerOptions stops{.timeout = absl::Seconds(1), .on_worker_loss = OnWorkerLoss::kStop};
  Begin(3, "async", stops);
  SendChunk(1, 0);
  ASSERT_EQ(SendChunk(0, 0), Receipt::kNotYet);
  ASSERT_EQ(SendChunk(2, 0), Receipt::kNotYet);
  EXPECT_EQ(inboxes_[0]->AwaitEnd(),
            "waited 1s for worker 1 to send the rest of a push, so that there is memory for the pushes of "
            "workers 0, 2");
  inboxes_.clear();
  Begin(2, "async", stops);
  SendChunk(1, 0);
  SendChunk(1, 0, 0, kChunkBytes);
  ASSERT_EQ(SendChunk(0, 0), Receipt::kNotYet);
  EXPECT_EQ(inboxes_[0]->AwaitEnd(),
            "waited 1s for worker 1 to read weights, so that there is memory for the pushes of worker 0");
}

TEST_F(StagedPushesTest, IfTheJobContinuesAStoppedWorkerIsLostWithItsMemory) {
  Begin(2, "ssp:1", {.timeout = absl::Seconds(1)});
  SendChunk(1, 0);
  ASSERT_EQ(SendChunk(0, 0), Receipt::kNotYet);
  EXPECT_THAT(inboxes_[1]->AwaitEnd(), HasSubstr("worker 1 to send the rest of a push"));
  EXPECT_TRUE(inboxes_[0]->AwaitProceed());
  EXPECT_EQ(SendChunk(0, 0), Receipt::kTaken);
  EXPECT_EQ(SendChunk(0, 0, 0, kChunkBytes), Receipt::kTaken);
  EXPECT_EQ(inboxes_[0]->Take().size(), 1u);
  // The server notifies the worker first, and records the loss when its memory is released.
  EXPECT_TRUE(Eventually([&] { return !server_->stats().lost_workers.empty(); }));
  EXPECT_THAT(server_->stats().lost_workers, ElementsAre(1));
}

TEST_F(StagedPushesTest, SerialAnswersNoBucketBeforeTheLast) {
  for (const bool serial : {false, true}) {
    inboxes_.clear();
    Begin(1, "sync", {}, serial);
    SendChunk(0, 0);
    SendChunk(0, 0, 0, kChunkBytes);
    EXPECT_EQ(inboxes_[0]->Take().size(), serial ? 0u : 1u);
    SendChunk(0, 0, 1);
    EXPECT_EQ(inboxes_[0]->Take().size(), serial ? 2u : 1u);
  }
}

}  // namespace
}  // namespace psring
