#include "ps_server/consistency/consistency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

namespace psring {
namespace {

using Decision = Consistency::Decision;

// Calls `visit` with every order in which `workers` workers can push `steps` steps each. `may_push`: whether
// a worker may push next, given how often each has pushed.
void ForEveryOrder(int workers, int steps, const std::function<bool(const std::vector<int>&, int)>& may_push,
                   const std::function<void(const std::vector<int>&)>& visit) {
  std::vector<int> order, pushed(workers, 0);
  const std::function<void()> extend = [&] {
    if (order.size() == static_cast<size_t>(workers * steps)) return visit(order);
    for (int worker = 0; worker < workers; ++worker) {
      if (pushed[worker] == steps || !may_push(pushed, worker)) continue;
      ++pushed[worker];
      order.push_back(worker);
      extend();
      order.pop_back();
      --pushed[worker];
    }
  };
  extend();
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
  const auto waits_for_none = [](const std::vector<int>& pushed, int worker) {
    return std::ranges::all_of(pushed, [&](int others) { return pushed[worker] <= others; });
  };
  int factorial = 1;
  for (int workers = 1; workers <= 3; ++workers) {
    std::vector<int> all(workers);
    std::iota(all.begin(), all.end(), 0);
    int orders = 0;
    ForEveryOrder(workers, 3, waits_for_none, [&](const std::vector<int>& order) {
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
  const auto anybody = [](const std::vector<int>&, int) { return true; };
  for (int workers = 1; workers <= 3; ++workers) {
    int orders = 0;
    ForEveryOrder(workers, 3, anybody, [&](const std::vector<int>& order) {
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

TEST(ConsistencyTest, NamesSelectTheImplementation) {
  EXPECT_EQ((*MakeConsistency("sync", 2))->OnPush(0, 0).apply_count, 0) << "waits for worker 1";
  EXPECT_EQ((*MakeConsistency("async", 2))->OnPush(0, 0).apply_count, 1);
  EXPECT_FALSE(MakeConsistency("eventual", 2).ok());
  EXPECT_FALSE(MakeConsistency("sync", 0).ok());
}

}  // namespace
}  // namespace psring
