#include "ps_server/server/checkpointing.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "common/base/deadline.h"

namespace psring {
namespace {

class MemoryStore : public CheckpointStore {
 public:
  absl::Status Save(const Checkpoint& checkpoint) override {
    steps.push_back(checkpoint.step);
    return result;
  }
  absl::StatusOr<std::optional<Checkpoint>> Load(int64_t) override { return std::nullopt; }
  void Clear() override {}
  std::vector<int64_t> steps;  // by the writer's thread, until Flush
  absl::Status result;
};

void Ignore(const absl::Status&) {}

TEST(CheckpointingTest, WithoutAStoreNothingIsDue) {
  Checkpointing checkpointing(nullptr, 1, Ignore);
  checkpointing.Begin(false, 2, 1);
  checkpointing.NoteVersion(0, 1);
  EXPECT_FALSE(checkpointing.enabled());
  EXPECT_FALSE(checkpointing.TakeDue());
}

TEST(CheckpointingTest, SynchronousIsDueWhenTheLastBucketReachesTheVersion) {
  MemoryStore store;
  Checkpointing checkpointing(&store, 2, Ignore);
  checkpointing.Begin(false, 3, 2);
  for (const int bucket : {0, 1}) checkpointing.NoteVersion(bucket, 1);
  EXPECT_FALSE(checkpointing.TakeDue()) << "every second version";
  checkpointing.NoteVersion(1, 2);
  EXPECT_FALSE(checkpointing.TakeDue());
  checkpointing.NoteVersion(0, 2);
  EXPECT_TRUE(checkpointing.TakeDue());
  EXPECT_FALSE(checkpointing.TakeDue()) << "once";
}

TEST(CheckpointingTest, AsynchronousCountsUpdatesOfTheFirstBucket) {
  MemoryStore store;
  Checkpointing checkpointing(&store, 2, Ignore);
  checkpointing.Begin(true, 3, 2);
  checkpointing.NoteVersion(1, 6);
  checkpointing.NoteVersion(0, 5);
  EXPECT_FALSE(checkpointing.TakeDue());
  checkpointing.NoteVersion(0, 6);
  EXPECT_TRUE(checkpointing.TakeDue()) << "2 steps of 3 workers";
}

TEST(CheckpointingTest, WhenAskedTheNextCommonVersionIsDueAndAwaited) {
  MemoryStore store;
  Checkpointing checkpointing(&store, 0, Ignore);
  checkpointing.Begin(false, 1, 1);
  checkpointing.NoteVersion(0, 1);
  EXPECT_FALSE(checkpointing.TakeDue());
  checkpointing.Ask();
  EXPECT_FALSE(checkpointing.AwaitWritten(MonotonicNow())) << "not written yet";
  checkpointing.NoteVersion(0, 2);
  EXPECT_TRUE(checkpointing.TakeDue());
  std::thread writer([&] { checkpointing.Write({.step = 2}); });
  EXPECT_TRUE(checkpointing.AwaitWritten(MonotonicNow() + absl::Seconds(30)));
  writer.join();
  EXPECT_EQ(store.steps, std::vector<int64_t>{2});
}

TEST(CheckpointingTest, AFailedWriteIsReported) {
  MemoryStore store;
  store.result = absl::ResourceExhaustedError("disk full");
  absl::Status reported;
  Checkpointing checkpointing(&store, 0, [&](const absl::Status& why) { reported = why; });
  checkpointing.Begin(false, 1, 1);
  checkpointing.Write({});
  checkpointing.Flush();
  EXPECT_EQ(reported.message(), "disk full");
}

}  // namespace
}  // namespace psring
