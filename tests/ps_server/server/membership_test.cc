#include "ps_server/server/membership.h"

#include <gtest/gtest.h>

#include <latch>

#include "ps_server/server/job_start.h"
#include "ps_server/server/watchdog.h"
#include "tests/ps_server/test_job.h"

namespace psring {
namespace {

using Entry = Membership::Entry;
using Presence = Membership::Presence;

constexpr int64_t kNow = 1'000'000;

Joining From(int worker, uint64_t session = 7, bool again = false) {
  return {.worker = worker, .session = session, .again = again};
}

TEST(MembershipTest, AWorkerJoinsOnce) {
  Membership members(2);
  EXPECT_EQ(members.Absent(), (std::vector<int>{0, 1}));
  EXPECT_EQ(*members.EntryOf(From(1), false), Entry::kFirst);
  members.Join(From(1));
  EXPECT_EQ(members.EntryOf(From(1), false).status().message(), "there is a worker 1 already");
  EXPECT_EQ(members.Absent(), std::vector<int>{0});
  EXPECT_EQ(members.Present(), (std::vector<std::pair<int, bool>>{{1, false}}));
}

TEST(MembershipTest, OnlyTheSameSessionResumesAndOnlyAfterTheStart) {
  Membership members(1);
  members.Join(From(0));
  ASSERT_TRUE(members.Disconnect(0, kNow, 100, "cut"));
  EXPECT_EQ(*members.EntryOf(From(0, 7, true), true), Entry::kResumes);
  EXPECT_EQ(members.EntryOf(From(0, 8, true), true).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(members.EntryOf(From(0, 7, true), false).status().code(), absl::StatusCode::kCancelled);
  members.Resume(0);
  EXPECT_FALSE(members.IsGone(0));
  EXPECT_TRUE(members.Overdue(kNow + 1000).empty());
}

TEST(MembershipTest, AWorkerIsOverdueAfterItsPatience) {
  Membership members(2);
  members.Join(From(0));
  members.Join(From(1, 0));  // without a session: cannot reconnect
  members.Disconnect(0, kNow, 100, "cut");
  members.Disconnect(1, kNow, 100, "gone");
  EXPECT_EQ(members.Overdue(kNow), (std::vector<std::pair<int, std::string>>{{1, "gone"}}));
  EXPECT_EQ(members.Overdue(kNow + 100).size(), 2u);
  members.Lose(1);
  EXPECT_EQ(members.presence(1), Presence::kLost);
  EXPECT_EQ(*members.EntryOf(From(1), true), Entry::kReturns);
  EXPECT_TRUE(members.OthersRemain(1));
  EXPECT_FALSE(members.OthersRemain(0));
}

TEST(MembershipTest, AnExpelledWorkerCannotResume) {
  Membership members(1);
  members.Join(From(0));
  ASSERT_TRUE(members.Expel(0, kNow, "NaN"));
  EXPECT_FALSE(members.EntryOf(From(0, 7, true), true).ok());
  EXPECT_EQ(members.Overdue(kNow).size(), 1u);
}

TEST(MembershipTest, AWorkerThatHasLeftIsAnsweredAgainInItsSession) {
  Membership members(1);
  members.Join(From(0));
  members.Leave(0);
  EXPECT_EQ(*members.EntryOf(From(0, 7, true), true), Entry::kAnsweredAgain);
  EXPECT_FALSE(members.EntryOf(From(0, 8, true), true).ok());
  EXPECT_FALSE(members.Disconnect(0, kNow, 0, "closed"));
  EXPECT_EQ(members.CountExpectedAndLeft(), std::pair(0, 1));
}

TEST(MembershipTest, AbsentWorkersAreExpectedAndLostOnesAreNot) {
  Membership members(2);
  members.AwaitReturn(1, /*lost=*/true, kNow, 10);
  EXPECT_EQ(members.CountExpectedAndLeft(), std::pair(1, 0));
  EXPECT_EQ(members.Absent(), std::vector<int>{0});
  EXPECT_EQ(members.Lost(), std::vector<int>{1});
}

TEST(MembershipTest, ABarrierOpensWhenNobodyIsMissing) {
  Membership members(3);
  for (const int worker : {0, 1, 2}) members.Join(From(worker));
  members.ReachBarrier(0, 2);
  EXPECT_TRUE(members.ReleaseBarriers().workers.empty());
  EXPECT_EQ(members.MissingAtBarrier(), (std::vector<int>{1, 2}));
  members.ReachBarrier(1, 2);
  members.Leave(2);
  const Membership::Released released = members.ReleaseBarriers();
  EXPECT_EQ(released.workers, (std::vector<std::pair<int, int>>{{0, 2}, {1, 2}}));
  EXPECT_TRUE(released.last);
  EXPECT_TRUE(members.MissingAtBarrier().empty());
}

TEST(MembershipTest, APassedBarrierStaysOpen) {
  Membership members(2);
  members.Join(From(0));
  members.PassBarriers(2);
  members.ReachBarrier(0, 1);
  EXPECT_EQ(members.ReleaseBarriers().workers.size(), 1u);
  members.ReachBarrier(0, 2);
  EXPECT_TRUE(members.ReleaseBarriers().workers.empty()) << "worker 1 is expected";
}

TEST(MembershipTest, WorkersAreNamedInOneText) {
  EXPECT_EQ(WorkersText({3}), "worker 3");
  EXPECT_EQ(WorkersText({0, 2}), "workers 0, 2");
}

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

TEST(WatchdogTest, ChecksWhenItIsWoken) {
  std::latch checked(1);
  Watchdog watchdog(
      absl::Hours(1), absl::Hours(1), [&] { checked.try_wait() ? void() : checked.count_down(); },
      [] { ADD_FAILURE() << "silence"; });
  watchdog.Wake();
  checked.wait();
  EXPECT_LT(watchdog.silence(), absl::Hours(1));
}

TEST(WatchdogTest, ReportsSilenceUntilSomethingArrives) {
  std::atomic<int> silent = 0;
  Watchdog watchdog(
      absl::Milliseconds(1), absl::Milliseconds(20), [] {},
      [&] {
        ++silent;
        silent.notify_all();
      });
  for (int seen; (seen = silent) < 2;) silent.wait(seen);
  watchdog.NoteArrival();
  EXPECT_LT(watchdog.silence(), absl::Seconds(10));
}

}  // namespace
}  // namespace psring
