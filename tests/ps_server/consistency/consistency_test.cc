// Waiting rules case by case, and repeated pushes. losses_test.cc and staleness_bounds_test.cc test all
// orders.
#include "ps_server/consistency/consistency.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "ps_server/consistency/admission.h"
#include "tests/ps_server/consistency/every_state.h"

namespace psring {
namespace {

using ::testing::HasSubstr;
using Decision = Consistency::Decision;

TEST(BoundedStalenessTest, NamesTheWorkersThatItWaitsFor) {
  const auto machine = MakeBoundedStaleness(3, 1);
  machine->OnPush(0, 0);
  EXPECT_TRUE(machine->WaitsFor().workers.empty());
  machine->OnPush(0, 1);
  EXPECT_EQ(machine->WaitsFor().workers, (std::vector<int>{1, 2}));
  EXPECT_EQ(machine->WaitsFor().step, 0);
  EXPECT_THAT(std::string(machine->MayPush(0, 2).message()), HasSubstr("it may lead by 1 steps"));
  EXPECT_FALSE(machine->OnLeave(0).accept);
  EXPECT_TRUE(machine->OnLeave(1).may_read.empty());
  EXPECT_EQ(machine->OnLeave(2).may_read, std::vector<int>{0});
}

TEST(BackupTest, ADroppedWorkerSkipsToTheOpenStep) {
  Admission admission(3, 1);
  for (int64_t step = 0; step < 3; ++step) {
    for (const int worker : {0, 1}) {
      const absl::StatusOr<Verdict> verdict = admission.OnAnnounce(worker, step);
      ASSERT_TRUE(verdict.ok());
      EXPECT_TRUE(verdict->admitted);
      EXPECT_EQ(verdict->complete, worker == 1 ? 2 : 0);
    }
  }
  const absl::StatusOr<Verdict> late = admission.OnAnnounce(2, 0);
  ASSERT_TRUE(late.ok());
  EXPECT_FALSE(late->admitted);
  EXPECT_EQ(late->version, 3);
  EXPECT_EQ(admission.dropped(), 1);
  EXPECT_EQ(admission.OnAnnounce(2, 1).status().message(),
            "worker 2 pushed step 1, from the past: its next one is 3");
  EXPECT_TRUE(admission.OnAnnounce(2, 3)->admitted);
  EXPECT_EQ(admission.WaitsFor().workers, (std::vector<int>{0, 1}));
}

TEST(BackupTest, ARejectedPushChangesNothing) {
  const auto bucket = MakeBackupBucket(2, 1);
  EXPECT_EQ(bucket->MayPush(0, 0).message(), "worker 0 pushed step 0, to which it was not admitted");
  EXPECT_FALSE(bucket->OnPush(0, 0).accept);
  ASSERT_TRUE(bucket->OnVerdict({.worker = 0, .admitted = true, .version = 0, .complete = 1}).accept);
  EXPECT_FALSE(bucket->OnVerdict({.worker = 1, .admitted = true, .version = 1}).accept);
  EXPECT_FALSE(bucket->OnLeave(0).accept);
  EXPECT_EQ(bucket->OnPush(0, 0).apply_count, 1);
  EXPECT_EQ(bucket->version(), 1);
}

TEST(LeavingTest, ASynchronousUpdateContainsTheRemainingWorkers) {
  const auto machine = MakeSynchronous(3);
  machine->OnPush(0, 0);
  machine->OnPush(2, 0);
  EXPECT_FALSE(machine->OnLeave(0).accept) << "its push is not answered";
  const Decision decision = machine->OnLeave(1);
  EXPECT_EQ(decision.apply_count, 2);
  EXPECT_EQ(decision.may_read, (std::vector<int>{0, 2}));
  machine->OnPush(2, 1);
  EXPECT_EQ(machine->OnPush(0, 1).apply_count, 2);
  EXPECT_FALSE(machine->OnPush(1, 2).accept);
  EXPECT_FALSE(machine->OnLeave(1).accept);
}

TEST(WaitingRuleTest, IsParsedFromItsNameOrRejectedInOneLine) {
  using Kind = WaitingRule::Kind;
  struct Good {
    const char* name;
    Kind kind;
    int number;
  };
  for (const Good& good : {Good{"sync", Kind::kSynchronous, 0}, Good{"async", Kind::kAsynchronous, 0},
                           Good{"ssp:0", Kind::kSynchronous, 0}, Good{"ssp:3", Kind::kBoundedStaleness, 3},
                           Good{"backup:0", Kind::kBackup, 0}, Good{"backup:3", Kind::kBackup, 3}}) {
    const auto rule = ParseWaitingRule(good.name, 4);
    ASSERT_TRUE(rule.ok()) << rule.status();
    EXPECT_EQ(rule->kind, good.kind) << good.name;
    EXPECT_EQ(rule->number, good.number) << good.name;
  }
  struct Bad {
    const char* name;
    const char* error;
  };
  for (const Bad& bad :
       {Bad{"eventual", "use sync, async, ssp:K or backup:B"}, Bad{"sync:1", "unknown consistency"},
        Bad{"ssp", "ssp needs a whole number, as in ssp:1"}, Bad{"ssp:", "needs a whole number"},
        Bad{"ssp:-1", "needs a whole number"}, Bad{"ssp:1x", "needs a whole number"},
        Bad{"ssp:2000000", "at most 1000000 steps"},
        Bad{"backup:4", "with 4 workers at most 3 can be spare"}}) {
    EXPECT_THAT(std::string(ParseWaitingRule(bad.name, 4).status().message()), HasSubstr(bad.error));
  }
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

// Every push except that of the step `due` (-1: of none) is rejected, or a repeat, and changes nothing.
void ExpectOnlyTheDueStep(Consistency& consistency, const std::vector<int64_t>& due) {
  for (int worker = 0; worker < static_cast<int>(due.size()); ++worker) {
    for (int64_t step = 0; step < 6; ++step) {
      EXPECT_EQ(consistency.MayPush(worker, step).ok(), step == due[worker]) << worker << " " << step;
      if (step == due[worker] || consistency.IsRepeat(worker, step)) continue;
      const int64_t version = consistency.version();
      const Decision decision = consistency.OnPush(worker, step);
      EXPECT_FALSE(decision.accept);
      EXPECT_NE(decision.reason.find("worker " + std::to_string(worker)), std::string::npos);
      EXPECT_EQ(decision.apply_count, 0);
      EXPECT_TRUE(decision.may_read.empty());
      EXPECT_EQ(consistency.version(), version);
    }
  }
}

TEST(SynchronousTest, InAnyOrderTheUpdateFollowsTheLastPushAndNoOtherStepIsTaken) {
  const auto waits_for_none = [](const std::vector<int>& left, size_t worker) {
    return std::ranges::all_of(left, [&](int others) { return left[worker] >= others; });
  };
  int factorial = 1;
  for (int workers = 1; workers <= 3; ++workers) {
    std::vector<int> all(workers);
    std::iota(all.begin(), all.end(), 0);
    int orders = 0;
    ForEveryOrder(std::vector<int>(workers, 3), waits_for_none, [&](const std::vector<int>& order) {
      ++orders;
      const auto consistency = MakeSynchronous(workers);
      std::vector<int64_t> next(workers, 0);
      for (size_t i = 0; i < order.size(); ++i) {
        std::vector<int64_t> due = next;
        for (int64_t& step : due) step = step == consistency->version() ? step : -1;  // waits for others
        ExpectOnlyTheDueStep(*consistency, due);
        const Decision decision = consistency->OnPush(order[i], next[order[i]]++);
        ASSERT_TRUE(decision.accept) << decision.reason;
        const bool last_of_step = (i + 1) % workers == 0;
        EXPECT_EQ(decision.apply_count, last_of_step ? workers : 0);
        EXPECT_EQ(decision.may_read, last_of_step ? all : std::vector<int>());
        EXPECT_EQ(consistency->version(), static_cast<int64_t>((i + 1) / workers));
      }
    });
    factorial *= workers;
    EXPECT_EQ(orders, factorial * factorial * factorial);
  }
}

TEST(AsynchronousTest, InAnyOrderEachPushIsAnUpdateAndNoOtherStepIsTaken) {
  for (int workers = 1; workers <= 3; ++workers) {
    int orders = 0;
    ForEveryOrder(std::vector<int>(workers, 3), AnyMayPush, [&](const std::vector<int>& order) {
      ++orders;
      const auto consistency = MakeAsynchronous(workers);
      std::vector<int64_t> next(workers, 0);
      for (size_t i = 0; i < order.size(); ++i) {
        ExpectOnlyTheDueStep(*consistency, next);
        const Decision decision = consistency->OnPush(order[i], next[order[i]]++);
        ASSERT_TRUE(decision.accept) << decision.reason;
        EXPECT_EQ(decision.apply_count, 1);
        EXPECT_EQ(decision.may_read, std::vector<int>{order[i]});
        EXPECT_EQ(consistency->version(), static_cast<int64_t>(i + 1));
      }
    });
    EXPECT_EQ(orders, workers == 1 ? 1 : workers == 2 ? 20 : 1680);
  }
}

TEST(ConsistencyTest, ErrorsNameTheProblemOfAPush) {
  const auto consistency = MakeSynchronous(2);
  for (int step = 0; step < 2; ++step) {
    for (int worker = 0; worker < 2; ++worker) consistency->OnPush(worker, step);
  }
  consistency->OnPush(0, 2);
  EXPECT_EQ(consistency->MayPush(0, 2).message(), "worker 0 pushed step 2 twice");
  EXPECT_EQ(consistency->MayPush(1, 0).message(), "worker 1 pushed step 0, from the past: its next one is 2");
  EXPECT_EQ(consistency->MayPush(1, 9).message(),
            "worker 1 pushed step 9, from the future: its next one is 2");
  EXPECT_EQ(consistency->MayPush(0, 3).message(),
            "worker 0 pushed step 3, from the future: step 2 still waits for other workers");
  EXPECT_EQ(consistency->MayPush(2, 2).message(), "worker 2 is out of range: there are 2");
  EXPECT_FALSE(consistency->OnPush(-1, 2).accept);
}

}  // namespace
}  // namespace psring
