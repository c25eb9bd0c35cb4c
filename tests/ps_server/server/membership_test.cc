#include "ps_server/server/membership.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace psring
