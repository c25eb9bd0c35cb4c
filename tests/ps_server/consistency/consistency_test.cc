#include "ps_server/consistency/consistency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "tests/ps_server/consistency/every_state.h"

namespace psring {
namespace {

using Decision = Consistency::Decision;

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
