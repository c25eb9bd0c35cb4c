// Lost workers that return, and repeated pushes, case by case. losses_test.cc tests all orders.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ps_server/consistency/consistency.h"

namespace psring {
namespace {

using Decision = Consistency::Decision;

TEST(JoiningTest, AfterAResetTheWorkersPushAgain) {
  const auto machine = MakeSynchronous(3);
  ASSERT_TRUE(machine->OnPush(0, 0).accept);
  ASSERT_TRUE(machine->OnPush(1, 0).accept);
  dynamic_cast<SummedPushes&>(*machine).OnReset();
  EXPECT_EQ(machine->OnLost(2).apply_count, 0);
  EXPECT_EQ(machine->OnPush(0, 0).apply_count, 0);
  const Decision decision = machine->OnPush(1, 0);
  EXPECT_EQ(decision.apply_count, 2);
  EXPECT_EQ(decision.may_read, (std::vector<int>{0, 1}));
}

TEST(JoiningTest, ACompletePushOfALostWorkerCountsAndIsNotAnswered) {
  const auto machine = MakeSynchronous(2);
  ASSERT_TRUE(machine->OnPush(1, 0).accept);
  ASSERT_TRUE(machine->OnLost(1).accept);
  const Decision decision = machine->OnPush(0, 0);
  EXPECT_EQ(decision.apply_count, 2);
  EXPECT_EQ(decision.may_read, std::vector<int>{0});
}

TEST(JoiningTest, ARepeatedPushIsAnsweredAndNotApplied) {
  for (const std::string rule : {"sync", "async", "ssp:1"}) {
    const auto machine = *MakeConsistency(rule, 1);
    EXPECT_FALSE(machine->IsRepeat(0, 0));
    ASSERT_EQ(machine->OnPush(0, 0).apply_count, 1);
    EXPECT_TRUE(machine->IsRepeat(0, 0));
    const Decision again = machine->OnPush(0, 0);
    EXPECT_TRUE(again.accept && again.repeats);
    EXPECT_EQ(again.apply_count, 0);
    EXPECT_EQ(again.may_read, std::vector<int>{0});
    EXPECT_EQ(machine->version(), 1);
  }
}

TEST(JoiningTest, ARestoredMachineContinuesAtItsVersion) {
  const auto before = MakeAsynchronous(2);
  for (int64_t step = 0; step < 3; ++step) ASSERT_TRUE(before->OnPush(0, step).accept);
  const auto after = MakeAsynchronous(2);
  after->Restore(before->Save());
  EXPECT_EQ(after->version(), 3);
  EXPECT_TRUE(after->IsRepeat(0, 2));
  EXPECT_TRUE(after->IsRepeat(0, 0));
  EXPECT_FALSE(after->IsRepeat(0, 3));
  EXPECT_TRUE(after->MayPush(0, 3).ok());
  EXPECT_TRUE(after->MayPush(1, 0).ok());
}

// Another server has lost its pushes: the worker repeats them, and waits only as it did then.
TEST(JoiningTest, EarlierPushesAreRepeatedWithoutWaitingForTheSlowest) {
  const auto machine = MakeBoundedStaleness(2, 1);
  ASSERT_TRUE(machine->OnPush(0, 0).accept);
  EXPECT_TRUE(machine->OnPush(0, 1).may_read.empty());  // waits for worker 1 to push step 0
  EXPECT_EQ(dynamic_cast<BoundedWaits&>(*machine).ReleaseAll().may_read, std::vector<int>{0});
  EXPECT_EQ(machine->OnPush(0, 0).may_read, std::vector<int>{0});
  EXPECT_TRUE(machine->OnPush(0, 1).may_read.empty());
  EXPECT_EQ(machine->OnPush(1, 0).may_read, (std::vector<int>{0, 1}));
  EXPECT_EQ(machine->version(), 3);
}

}  // namespace
}  // namespace psring
