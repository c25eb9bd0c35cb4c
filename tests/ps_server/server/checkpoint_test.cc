// Which checkpoints a restarted server accepts, and when a server takes one.
#include "ps_server/server/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/deadline.h"
#include "ps_server/server/parameter_server.h"
#include "tests/ps_server/test_job.h"

namespace psring {
namespace {

using ::testing::HasSubstr;

TEST(CheckpointTest, IsRejectedIfItDoesNotFitItsJobOrItsServer) {
  const auto restored = [](const Checkpoint& checkpoint) {
    const std::unique_ptr<Device> device = MakeCpuDevice();
    return ParameterServer(*device, {.workers = 2}).Restore(checkpoint).ToString();
  };
  Checkpoint sync{.job = MakeJob(2, {10}),
                  .step = 4,
                  .buckets = {{.version = 4, .left = {false, false}}},
                  .samples = {8},
                  .values = std::vector<float>(20)};
  sync.stats.worker_pushes = sync.stats.worker_staleness_sum = sync.stats.worker_dropped = {0, 0};
  Checkpoint async = sync;
  async.job.consistency = "async";
  async.buckets = {{.version = 8, .next_step = {4, 4}, .left = {false, false}}};
  EXPECT_EQ(restored(sync), "OK");
  EXPECT_EQ(restored(async), "OK");
  struct Case {
    const Checkpoint& fits;
    std::function<void(Checkpoint&)> change;
    const char* error;
  };
  for (const Case& c : {
           Case{sync, [](Checkpoint& one) { one.buckets[0].left = {}; },
                "bucket 0's left has 0 entries, not 2"},
           Case{sync, [](Checkpoint& one) { one.buckets.clear(); }, "buckets has 0 entries, not 1"},
           Case{sync, [](Checkpoint& one) { one.samples = {}; }, "samples has 0 entries, not 1"},
           Case{sync, [](Checkpoint& one) { one.samples = {-1}; }, "samples's entry is -1"},
           Case{sync, [](Checkpoint& one) { one.samples = {INT64_MAX}; },
                "samples's entry is 9223372036854775807"},
           Case{sync, [](Checkpoint& one) { one.values.pop_back(); },
                "it has 19 values, not 2 for each of 10"},
           Case{sync, [](Checkpoint& one) { one.step = one.buckets[0].version = -1; }, "step is -1"},
           Case{sync, [](Checkpoint& one) { one.step = one.buckets[0].version = INT64_MAX; }, "step is 9223"},
           Case{sync, [](Checkpoint& one) { one.buckets[0].version = 3; }, "version is 3, not the step 4"},
           Case{sync, [](Checkpoint& one) { one.job.workers = 3; }, "a job with 3 workers"},
           Case{sync, [](Checkpoint& one) { one.job.servers = 2; },
                "of server 0 of 2, and this is server 0 of 1"},
           Case{sync, [](Checkpoint& one) { one.stats.worker_pushes = {4}; }, "worker_pushes has 1 entries"},
           Case{sync,
                [](Checkpoint& one) {
                  one.stats.worker_dropped = {0, -4};
                },
                "worker_dropped's entry is -4"},
           Case{sync, [](Checkpoint& one) { one.stats.lost_workers = {1}; },
                "lost_at_step has 0 entries, not 1"},
           Case{sync, [](Checkpoint& one) { one.stats.lost_workers = one.stats.lost_at_step = {2}; },
                "lost_workers's entry is 2; it must be 0 to 1"},
           Case{async, [](Checkpoint& one) { one.buckets[0].next_step = {}; },
                "next_step has 0 entries, not 2"},
           Case{async, [](Checkpoint& one) { one.buckets[0].next_step[1] = -7; }, "next_step's entry is -7"},
           Case{async, [](Checkpoint& one) { one.buckets[0].version = INT64_MIN; }, "version is -9223"},
           Case{sync, [](Checkpoint& one) { one.job.start_step = 9, one.job.optimizer.earlier_updates = -5; },
                "version is 4, before the first update"},
           Case{async,
                [](Checkpoint& one) { one.job.start_step = 9, one.job.optimizer.earlier_updates = -9; },
                "version is 8, before the first update"},
       }) {
    Checkpoint checkpoint = c.fits;
    c.change(checkpoint);
    EXPECT_THAT(restored(checkpoint), HasSubstr(c.error));
  }
}

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
