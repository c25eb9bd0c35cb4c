// A server that has memory for one push at a time, called with the chunks of its workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/eventually.h"
#include "tests/ps_server/server/server_fixture.h"

namespace psring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kTwoChunks = kChunkBytes / sizeof(float) + 10;

class StagedPushesTest : public ServerFixture {
 protected:
  void Begin(int workers, const std::string& consistency, ServerOptions options = {}) {
    options.staging_bytes = 1;  // rounded up to one bucket
    ServerFixture::Begin(MakeJob(workers, {kTwoChunks, 100}, {.consistency = consistency}), options);
  }
  Receipt SendChunk(int worker, int64_t step, int bucket = 0, size_t offset = 0) {
    message::Gradient message = GradientOf(bucket, step);
    message.offset = offset;
    const size_t bytes = job_.buckets[bucket].count * sizeof(float);
    return Send(worker, message,
                std::as_bytes(std::span(gradient_)).subspan(offset, ChunkLength(bytes, offset)));
  }
  size_t BucketBytes() const { return kTwoChunks * sizeof(float); }

  const std::vector<float> gradient_ = std::vector<float>(kTwoChunks, 1);
};

TEST_F(StagedPushesTest, APushWaitsUntilTheStagedOneIsAnsweredAndRead) {
  Begin(2, "async");
  EXPECT_EQ(SendChunk(0, 0), Receipt::kTaken);
  EXPECT_EQ(SendChunk(1, 0), Receipt::kNotYet);
  EXPECT_EQ(SendChunk(0, 0, 0, kChunkBytes), Receipt::kTaken);
  EXPECT_EQ(SendChunk(1, 0), Receipt::kNotYet) << "the answer uses the memory of the gradient";
  EXPECT_EQ(sinks_[0]->Take().size(), 1u);
  EXPECT_TRUE(sinks_[1]->AwaitProceed());
  EXPECT_EQ(SendChunk(1, 0), Receipt::kTaken);
  EXPECT_EQ(SendChunk(1, 0, 0, kChunkBytes), Receipt::kTaken);
  EXPECT_EQ(server_->stats().staging_peak_bytes, BucketBytes());
  EXPECT_EQ(server_->stats().pushes, 2);
}

TEST_F(StagedPushesTest, AnAnswerToSeveralWorkersIsOneCopyUntilAllHaveReadIt) {
  Begin(3, "ssp:1");
  for (int worker = 0; worker < 3; ++worker) {
    Push(worker, 0, 0);
    sinks_[worker]->Take();
  }
  for (const int worker : {0, 1}) {
    Push(worker, 0, 1);
    sinks_[worker]->Take();
    Push(worker, 0, 2);  // waits for worker 2 without using memory
    EXPECT_TRUE(sinks_[worker]->Take().empty());
  }
  Push(2, 0, 1);
  const auto first = sinks_[0]->Take();
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(sinks_[1]->Take().size(), 1u);
  EXPECT_EQ(sinks_[2]->Take().size(), 1u);
  EXPECT_EQ(SendChunk(2, 2), Receipt::kNotYet) << "worker 0 still reads";
  EXPECT_EQ(server_->stats().staging_peak_bytes, BucketBytes());
}

TEST_F(StagedPushesTest, TheMemoryOfADisconnectedWorkerIsAvailableToOthers) {
  for (const bool in_line : {false, true}) {
    Begin(3, "async", {.worker_timeout = absl::Seconds(60)});
    ASSERT_EQ(SendChunk(0, 0), Receipt::kTaken);
    ASSERT_EQ(SendChunk(1, 0), Receipt::kNotYet);
    ASSERT_EQ(SendChunk(2, 0), Receipt::kNotYet);
    if (in_line) server_->Disconnected(1, sinks_[1].get(), "cut");
    server_->Disconnected(0, sinks_[0].get(), "cut");
    const int next = in_line ? 2 : 1;
    EXPECT_TRUE(sinks_[next]->AwaitProceed());
    EXPECT_EQ(SendChunk(next, 0), Receipt::kTaken);
  }
}

TEST_F(StagedPushesTest, APushInTheMiddleOfAnotherIsRejected) {
  Begin(1, "async");
  EXPECT_EQ(SendChunk(0, 0), Receipt::kTaken);
  SendChunk(0, 0, 1);
  EXPECT_EQ(sinks_[0]->AwaitEnd(), "worker 0, bucket 1: a push in the middle of that of bucket 0 of step 0");
}

TEST_F(StagedPushesTest, TheTimeoutNamesTheWorkerThatUsesTheMemory) {
  const ServerOptions stops{.timeout = absl::Seconds(1), .on_worker_loss = OnWorkerLoss::kStop};
  Begin(3, "async", stops);
  SendChunk(1, 0);
  ASSERT_EQ(SendChunk(0, 0), Receipt::kNotYet);
  ASSERT_EQ(SendChunk(2, 0), Receipt::kNotYet);
  EXPECT_EQ(sinks_[0]->AwaitEnd(),
            "waited 1s for worker 1 to send the rest of a push, so that there is memory for the pushes of "
            "workers 0, 2");
  Begin(2, "async", stops);
  SendChunk(1, 0);
  SendChunk(1, 0, 0, kChunkBytes);
  ASSERT_EQ(SendChunk(0, 0), Receipt::kNotYet);
  EXPECT_EQ(sinks_[0]->AwaitEnd(),
            "waited 1s for worker 1 to read weights, so that there is memory for the pushes of worker 0");
}

TEST_F(StagedPushesTest, IfTheJobContinuesAStoppedWorkerIsLostWithItsMemory) {
  Begin(2, "ssp:1", {.timeout = absl::Seconds(1)});
  SendChunk(1, 0);
  ASSERT_EQ(SendChunk(0, 0), Receipt::kNotYet);
  EXPECT_THAT(sinks_[1]->AwaitEnd(), HasSubstr("worker 1 to send the rest of a push"));
  EXPECT_TRUE(sinks_[0]->AwaitProceed());
  EXPECT_EQ(SendChunk(0, 0), Receipt::kTaken);
  EXPECT_EQ(SendChunk(0, 0, 0, kChunkBytes), Receipt::kTaken);
  EXPECT_EQ(sinks_[0]->Take().size(), 1u);
  // The server notifies the worker first, and records the loss when its memory is released.
  EXPECT_TRUE(Eventually([&] { return !server_->stats().lost_workers.empty(); }));
  EXPECT_THAT(server_->stats().lost_workers, ElementsAre(1));
}

}  // namespace
}  // namespace psring
