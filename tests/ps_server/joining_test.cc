// Losses and returns, by enumeration: in every order in which workers push, one of them is lost at every
// point, and comes back at every later one.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ps_server/consistency.h"

namespace psring {
namespace {

using Decision = Consistency::Decision;

constexpr int kBuckets = 2;
constexpr int kWorkers = 2;
constexpr int kSteps = 3;
constexpr int kVictim = 1;

// Workers push bucket after bucket, wait for both, go on. The victim's death and return are two more actions.
class World {
 public:
  explicit World(const std::string& rule) {
    for (int i = 0; i < kBuckets; ++i) machines_.push_back(*MakeConsistency(rule, kWorkers));
  }
  enum { kLose = kWorkers, kReturn = kWorkers + 1, kActions = kWorkers + 2 };

  bool Can(int action) const {
    const Worker& victim = workers_[kVictim];
    if (action == kLose) return !was_lost_ && !victim.done;
    if (action == kReturn) return was_lost_ && victim.lost;
    const Worker& w = workers_[action];
    return !w.done && !w.lost && !w.joining && w.next_bucket < kBuckets;
  }
  void Do(int action) {
    if (action == kLose) return Lose();
    if (action == kReturn) return Return();
    Worker& w = workers_[action];
    const int bucket = w.next_bucket++;
    ASSERT_TRUE(machines_[bucket]->MayPush(action, w.step).ok())
        << machines_[bucket]->MayPush(action, w.step);
    made_[bucket].push_back({action, w.step});
    Read(machines_[bucket]->OnPush(action, w.step));
  }
  // Everybody who lives has made all steps, and no push is in an update twice.
  void ExpectDone(const std::vector<int>& order) const {
    for (int i = 0; i < kWorkers; ++i) {
      EXPECT_TRUE(workers_[i].done || workers_[i].lost) << i << testing::PrintToString(order);
    }
    for (auto pushes : made_) {
      std::sort(pushes.begin(), pushes.end());
      EXPECT_EQ(std::adjacent_find(pushes.begin(), pushes.end()), pushes.end());
    }
  }
  bool over() const {
    return std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.done || w.lost; });
  }

 private:
  struct Worker {
    int64_t step = 0;
    int next_bucket = 0;
    int replies = 0;
    bool lost = false, joining = false, done = false;
  };

  void Lose() {
    was_lost_ = true;
    Worker& victim = workers_[kVictim];
    victim = {.step = victim.step, .lost = true};
    for (int bucket = 0; bucket < kBuckets; ++bucket) Read(machines_[bucket]->OnLost(kVictim));
  }
  void Return() {
    int64_t step = 0;
    for (const auto& machine : machines_) step = std::max(step, machine->JoinsAt(kVictim));
    workers_[kVictim] = {.step = step, .joining = true};
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      EXPECT_FALSE(machines_[bucket]->OnJoin(kVictim, machines_[bucket]->JoinsAt(kVictim) - 1).accept);
      const Decision decision = machines_[bucket]->OnJoin(kVictim, step);
      ASSERT_TRUE(decision.accept) << decision.reason;
      Read(decision);
    }
  }
  void Read(const Decision& decision) {
    ASSERT_TRUE(decision.accept) << decision.reason;
    for (const int reader : decision.may_read) {
      Worker& r = workers_[reader];
      ASSERT_FALSE(r.lost) << "an answer for a worker that is lost";
      if (++r.replies < kBuckets) continue;
      r.replies = 0;
      r.next_bucket = 0;
      if (!r.joining) ++r.step;
      r.joining = false;
      if (r.step < kSteps) continue;
      r.done = true;
      for (int i = 0; i < kBuckets; ++i) Read(machines_[i]->OnLeave(reader));
    }
  }

  std::vector<std::unique_ptr<Consistency>> machines_;
  std::vector<Worker> workers_ = std::vector<Worker>(kWorkers);
  std::vector<std::vector<std::pair<int, int64_t>>> made_ =
      std::vector<std::vector<std::pair<int, int64_t>>>(kBuckets);
  bool was_lost_ = false;
};

TEST(JoiningTest, InEveryOrderTheOthersGoOnAndWhoComesBackTakesPartAgain) {
  for (const std::string rule : {"sync", "async", "ssp:1"}) {
    int orders = 0;
    std::vector<int> order;
    const std::function<void()> extend = [&] {
      if (testing::Test::HasFailure()) return;
      World world(rule);
      for (const int action : order) world.Do(action);
      bool stuck = true;
      for (int action = 0; action < World::kActions; ++action) {
        if (world.over() || !world.Can(action)) continue;
        stuck = false;
        order.push_back(action);
        extend();
        order.pop_back();
      }
      if (!stuck) return;
      ++orders;
      world.ExpectDone(order);
    };
    extend();
    EXPECT_GT(orders, 1000) << rule;
  }
}

TEST(JoiningTest, AResetTakesThePushesBackAndTheyComeAgain) {
  const auto machine = MakeSynchronous(3);
  ASSERT_TRUE(machine->OnPush(0, 0).accept);
  ASSERT_TRUE(machine->OnPush(1, 0).accept);
  machine->OnReset();
  EXPECT_EQ(machine->OnLost(2).apply_count, 0);
  EXPECT_EQ(machine->OnPush(0, 0).apply_count, 0);
  const Decision decision = machine->OnPush(1, 0);
  EXPECT_EQ(decision.apply_count, 2);
  EXPECT_EQ(decision.may_read, (std::vector<int>{0, 1}));
}

TEST(JoiningTest, AWholePushOfALostWorkerCountsAndIsNotAnswered) {
  const auto machine = MakeSynchronous(2);
  ASSERT_TRUE(machine->OnPush(1, 0).accept);
  ASSERT_TRUE(machine->OnLost(1).accept);
  const Decision decision = machine->OnPush(0, 0);
  EXPECT_EQ(decision.apply_count, 2);
  EXPECT_EQ(decision.may_read, std::vector<int>{0});
}

TEST(JoiningTest, ARepeatIsKnownAndAppliesNothing) {
  for (const std::string rule : {"sync", "async", "ssp:1"}) {
    const auto machine = *MakeConsistency(rule, 1);
    EXPECT_FALSE(machine->IsRepeat(0, 0));
    ASSERT_EQ(machine->OnPush(0, 0).apply_count, 1);
    EXPECT_TRUE(machine->IsRepeat(0, 0));
    const Decision again = machine->OnRepeat(0, 0);
    EXPECT_EQ(again.apply_count, 0);
    EXPECT_EQ(again.may_read, std::vector<int>{0});
    EXPECT_EQ(machine->version(), 1);
  }
}

TEST(JoiningTest, WhatIsRestoredGoesOnWhereItWas) {
  const auto before = MakeAsynchronous(2);
  for (int64_t step = 0; step < 3; ++step) ASSERT_TRUE(before->OnPush(0, step).accept);
  const auto after = MakeAsynchronous(2);
  after->Restore(before->Save());
  EXPECT_EQ(after->version(), 3);
  EXPECT_TRUE(after->IsRepeat(0, 2));
  EXPECT_EQ(after->SkipTo(0, 7), 4);  // the pushes of steps 3 to 6 went down with the server
  EXPECT_TRUE(after->MayPush(0, 7).ok());
  EXPECT_TRUE(after->MayPush(1, 0).ok());
}

}  // namespace
}  // namespace psring
