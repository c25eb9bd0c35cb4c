#include "ps_server/server/job_start.h"

#include <gtest/gtest.h>

#include "tests/ps_server/test_job.h"

namespace psring {
namespace {

TEST(JobStartTest, BeginsOnceWhenAllHaveJoinedAndTheWeightsAreComplete) {
  JobStart start(2, 0, 1);
  Membership members(2);
  members.Join({.worker = 1});
  EXPECT_EQ(start.WaitsFor(members), "worker 0 to join");
  members.Join({.worker = 0});
  EXPECT_FALSE(start.Begin(members));
  EXPECT_EQ(start.WaitsFor(members), "worker 0's initial weights");
  start.OnWeights();
  EXPECT_TRUE(start.Begin(members));
  EXPECT_FALSE(start.Begin(members));
  EXPECT_EQ(start.epoch(), 0);
}

TEST(JobStartTest, AnotherJobIsRejectedAndTheRejectionIsKeptUntilTheWorkerJoins) {
  JobStart start(2, 0, 1);
  const ServerJob job = MakeJob(2, {10}), other = MakeJob(2, {11});
  EXPECT_EQ(start.Check(1, job), absl::OkStatus());
  start.NoteJoin(1, job, absl::OkStatus());
  const absl::Status why = start.Check(0, other);
  EXPECT_EQ(why.message(), "worker 0 has another job than worker 1: parameters is 11, not 10");
  start.NoteJoin(0, other, why);
  EXPECT_EQ(start.RejectionOf({0, 1}), absl::StrCat("; worker 0 was rejected: ", why.message()));
  start.NoteJoin(0, job, absl::OkStatus());
  EXPECT_EQ(start.RejectionOf({0, 1}), "");
  EXPECT_EQ(start.Check(0, MakeJob(3, {10})).message(),
            "worker 0's job has 3 workers; this server was started for 2");
}

TEST(JobStartTest, ARestartedServerIsInTheEpochAfterThatOfItsWorkers) {
  const Checkpoint checkpoint{.job = MakeJob(1, {10}), .step = 4};
  JobStart start(1, 0, 1);
  start.Restore(checkpoint, /*each_alone=*/false, std::nullopt);
  Membership members(1);
  members.Join({.worker = 0, .epoch = 2});
  EXPECT_TRUE(start.Begin(members));
  EXPECT_EQ(start.epoch(), 3);
  EXPECT_EQ(start.first_step(0), 4);
}

TEST(JobStartTest, AsynchronousWorkersBeginAtTheEarliestOfTheirBuckets) {
  Checkpoint checkpoint{.job = MakeJob(2, {10, 5}, {.consistency = "async"}), .step = 4};
  checkpoint.buckets = {{.next_step = {5, 4}}, {.next_step = {4, 6}}};
  JobStart start(2, 0, 1);
  start.Restore(checkpoint, /*each_alone=*/true, /*epoch=*/7);
  EXPECT_TRUE(start.has_begun());
  EXPECT_EQ(start.epoch(), 7);
  EXPECT_EQ(start.first_step(0), 4);
  EXPECT_EQ(start.first_step(1), 4);
}

}  // namespace
}  // namespace psring
