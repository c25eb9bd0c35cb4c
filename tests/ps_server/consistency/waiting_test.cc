// Every waiting rule, by enumeration of all orders in which a few workers can make a few steps with two
// buckets. Some workers leave early.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ps_server/consistency/admission.h"
#include "ps_server/consistency/consistency.h"

namespace psring {
namespace {

using ::testing::HasSubstr;
using Decision = Consistency::Decision;

constexpr int kWaitingBuckets = 2;

// A model of a job's workers, reduced to waiting: a worker computes a step, pushes its buckets in order,
// waits for both replies and continues; after its last step it leaves. Derived classes check what must hold.
class WaitingWorld {
 public:
  // `steps`: of each worker (with backup workers: the step at which it stops).
  explicit WaitingWorld(std::vector<int> steps) : steps_(std::move(steps)), workers_(steps_.size()) {}
  virtual ~WaitingWorld() = default;

  int workers() const { return static_cast<int>(workers_.size()); }
  bool Finished() const {
    return std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.left; });
  }
  // Whether the worker can act now; and its action.
  bool CanAct(int worker) const {
    const Worker& w = workers_[worker];
    return !w.left && (w.next_bucket < kWaitingBuckets ? !w.announced : w.replies == kWaitingBuckets);
  }
  virtual void Act(int worker) = 0;

  struct Worker {
    int64_t clock = 0;       // the step it may compute
    int next_bucket = 0;     // to push
    bool announced = false;  // it waits for the verdict
    int replies = 0;
    bool left = false;
    bool dropped = false;
    std::vector<int64_t> read = std::vector<int64_t>(kWaitingBuckets, 0);  // version, by bucket
  };

 protected:
  std::vector<int> steps_;
  std::vector<Worker> workers_;
};

// Calls `visit` at the end of every order of actions, each with a new world.
int ForEveryOrder(const std::function<std::unique_ptr<WaitingWorld>()>& make) {
  int orders = 0;
  std::vector<int> order;
  const std::function<void()> extend = [&] {
    if (testing::Test::HasFatalFailure() || testing::Test::HasNonfatalFailure()) return;
    const std::unique_ptr<WaitingWorld> world = make();
    for (const int worker : order) world->Act(worker);
    bool stuck = true;
    for (int worker = 0; worker < world->workers(); ++worker) {
      if (!world->CanAct(worker)) continue;
      stuck = false;
      order.push_back(worker);
      extend();
      order.pop_back();
    }
    if (!stuck) return;
    ++orders;
    EXPECT_TRUE(world->Finished()) << "deadlock after " << testing::PrintToString(order);
  };
  extend();
  return orders;
}

// Pushes one bucket at a time; every push is an update.
class StaleWorld : public WaitingWorld {
 public:
  StaleWorld(std::vector<int> steps, int bound) : WaitingWorld(std::move(steps)), bound_(bound) {
    for (int bucket = 0; bucket < kWaitingBuckets; ++bucket) {
      buckets_.push_back(MakeBoundedStaleness(workers(), bound));
      pushed_.emplace_back(workers(), 0);
    }
    for (int i = 0; i < workers(); ++i) StopIfDone(i);
  }

  void Act(int worker) override {
    Worker& w = workers_[worker];
    const int bucket = w.next_bucket++;
    const int64_t staleness = buckets_[bucket]->version() - w.read[bucket];
    EXPECT_LE(staleness, (2 * bound_ + 1) * (workers() - 1));
    ASSERT_TRUE(buckets_[bucket]->MayPush(worker, w.clock).ok());
    const Decision decision = buckets_[bucket]->OnPush(worker, w.clock);
    ASSERT_TRUE(decision.accept) << decision.reason;
    EXPECT_EQ(decision.apply_count, 1);
    ++pushed_[bucket][worker];
    Read(bucket, decision);
    CheckClocks();
  }

 private:
  void Read(int bucket, const Decision& decision) {
    for (const int reader : decision.may_read) {
      Worker& r = workers_[reader];
      // Visibility: a worker at clock c has read every update of the clocks up to c - K - 1.
      const int64_t clock = r.clock + 1;
      for (int other = 0; other < workers(); ++other) {
        if (!workers_[other].left) {
          EXPECT_GE(pushed_[bucket][other], clock - bound_);
        }
      }
      r.read[bucket] = buckets_[bucket]->version();
      if (++r.replies < kWaitingBuckets) continue;
      r.replies = 0;
      r.next_bucket = 0;
      r.clock = clock;
      StopIfDone(reader);
    }
  }
  void StopIfDone(int worker) {
    Worker& w = workers_[worker];
    if (w.clock < steps_[worker]) return;
    w.left = true;
    for (int bucket = 0; bucket < kWaitingBuckets; ++bucket) {
      const Decision decision = buckets_[bucket]->OnLeave(worker);
      ASSERT_TRUE(decision.accept) << decision.reason;
      EXPECT_EQ(decision.apply_count, 0);
      Read(bucket, decision);
    }
  }
  void CheckClocks() {
    int64_t slowest = INT64_MAX, fastest = 0;
    for (const Worker& worker : workers_) {
      if (worker.left) continue;
      slowest = std::min(slowest, worker.clock);
      fastest = std::max(fastest, worker.clock);
    }
    EXPECT_LE(fastest - std::min(slowest, fastest), bound_);
  }

  const int bound_;
  std::vector<std::unique_ptr<Consistency>> buckets_;
  std::vector<std::vector<int64_t>> pushed_;  // by bucket and worker
};

TEST(BoundedStalenessTest, HasItsBoundsAndNoDeadlockInAnyOrder) {
  struct Case {
    std::vector<int> steps;
    int bound;
  };
  int orders = 0;
  for (const Case& c : {Case{{3}, 1}, Case{{3, 3}, 1}, Case{{3, 3}, 2}, Case{{3, 1}, 1}, Case{{0, 3}, 1},
                        Case{{4, 2}, 1}, Case{{2, 2, 1}, 1}, Case{{2, 2, 2}, 1}}) {
    orders += ForEveryOrder([&] { return std::make_unique<StaleWorld>(c.steps, c.bound); });
  }
  EXPECT_GT(orders, 10000);
}

// One bucket, so that three workers can make three steps.
TEST(BoundedStalenessTest, ReachesItsBounds) {
  for (const int bound : {1, 2}) {
    int64_t widest = 0, stalest = 0;
    std::vector<int> order;
    const int workers = 3, steps = 4;
    const std::function<void()> extend = [&] {
      const auto machine = MakeBoundedStaleness(workers, bound);
      std::vector<int64_t> clock(workers, 0), read(workers, 0), next(workers, 0);
      for (const int worker : order) {
        stalest = std::max(stalest, machine->version() - read[worker]);
        const Decision decision = machine->OnPush(worker, next[worker]++);
        ASSERT_TRUE(decision.accept);
        for (const int reader : decision.may_read) {
          read[reader] = machine->version();
          clock[reader] = next[reader];
        }
      }
      const auto [least, most] = std::minmax_element(clock.begin(), clock.end());
      widest = std::max(widest, *most - *least);
      for (int worker = 0; worker < workers; ++worker) {
        if (next[worker] == steps) continue;
        if (clock[worker] < next[worker]) {
          EXPECT_FALSE(machine->MayPush(worker, next[worker]).ok());
          continue;
        }
        order.push_back(worker);
        extend();
        order.pop_back();
      }
    };
    extend();
    EXPECT_EQ(widest, bound);
    EXPECT_LE(stalest, (2 * bound + 1) * (workers - 1));
    if (bound == 1) {
      EXPECT_EQ(stalest, (2 * bound + 1) * (workers - 1));  // four steps suffice
    }
  }
}

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

// Announces a gradient, and pushes its buckets when it is admitted.
class BackupWorld : public WaitingWorld {
 public:
  BackupWorld(std::vector<int> steps, int backup)
      : WaitingWorld(std::move(steps)), backup_(backup), admission_(workers(), backup) {
    for (int bucket = 0; bucket < kWaitingBuckets; ++bucket) {
      buckets_.push_back(MakeBackupBucket(workers(), backup));
      pushed_.emplace_back();
    }
    // A worker has its weights and has not announced yet.
    for (Worker& worker : workers_) {
      worker.next_bucket = kWaitingBuckets;
      worker.replies = kWaitingBuckets;
    }
    for (int i = 0; i < workers(); ++i) StopIfDone(i);
  }
  ~BackupWorld() override {
    if (!Finished()) return;
    EXPECT_EQ(buckets_[0]->version(), buckets_[1]->version());
    EXPECT_EQ(admission_.dropped(), dropped_);
  }

  void Act(int worker) override {
    Worker& w = workers_[worker];
    if (w.next_bucket == kWaitingBuckets) return Announce(worker);
    const int bucket = w.next_bucket++;
    ASSERT_TRUE(buckets_[bucket]->MayPush(worker, w.clock).ok());
    pushed_[bucket].push_back(worker);
    Apply(bucket, buckets_[bucket]->OnPush(worker, w.clock));
  }

 private:
  void Announce(int worker) {
    Worker& w = workers_[worker];
    // The weights of all buckets have one version, which is the step.
    EXPECT_EQ(w.read, std::vector<int64_t>(kWaitingBuckets, w.clock));
    const absl::StatusOr<Verdict> verdict = admission_.OnAnnounce(worker, w.clock);
    ASSERT_TRUE(verdict.ok()) << verdict.status();
    EXPECT_FALSE(admission_.OnAnnounce(worker, w.clock).ok()) << "a second time";
    w.replies = 0;
    w.dropped = !verdict->admitted;
    if (w.dropped) ++dropped_;
    if (verdict->admitted) w.next_bucket = 0;
    w.announced = !verdict->admitted;
    for (int bucket = 0; bucket < kWaitingBuckets; ++bucket)
      Apply(bucket, buckets_[bucket]->OnVerdict(*verdict));
  }
  void Apply(int bucket, const Decision& decision) {
    ASSERT_TRUE(decision.accept) << decision.reason;
    if (decision.apply_count > 0) {
      // Exactly N - B, or all that remain.
      const int remaining = static_cast<int>(
          std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return !w.left; }));
      EXPECT_EQ(decision.apply_count, static_cast<int>(pushed_[bucket].size()));
      EXPECT_LE(decision.apply_count, workers() - backup_);
      EXPECT_GE(decision.apply_count, std::min(workers() - backup_, remaining));
      // The same workers in every bucket.
      std::sort(pushed_[bucket].begin(), pushed_[bucket].end());
      const size_t step = static_cast<size_t>(buckets_[bucket]->version() - 1);
      if (made_of_.size() <= step) made_of_.resize(step + 1, pushed_[bucket]);
      EXPECT_EQ(made_of_[step], pushed_[bucket]);
      pushed_[bucket].clear();
    }
    for (const int reader : decision.may_read) {
      Worker& r = workers_[reader];
      r.read[bucket] = buckets_[bucket]->version();
      if (++r.replies < kWaitingBuckets) continue;
      r.clock = r.read[bucket];
      r.announced = false;
      r.next_bucket = kWaitingBuckets;
      StopIfDone(reader);
    }
  }
  void StopIfDone(int worker) {
    Worker& w = workers_[worker];
    if (w.clock < steps_[worker]) return;
    w.left = true;
    const absl::StatusOr<Verdict> verdict = admission_.OnLeave(worker);
    ASSERT_TRUE(verdict.ok()) << verdict.status();
    for (int bucket = 0; bucket < kWaitingBuckets; ++bucket) {
      Apply(bucket, buckets_[bucket]->OnLeave(worker));
      if (verdict->complete > 0) {
        Apply(bucket, buckets_[bucket]->OnComplete(verdict->version, verdict->complete));
      }
    }
  }

  const int backup_;
  Admission admission_;
  std::vector<std::unique_ptr<BackupBucket>> buckets_;
  std::vector<std::vector<int>> pushed_;   // by bucket, towards its next version
  std::vector<std::vector<int>> made_of_;  // by step
  int64_t dropped_ = 0;
};

TEST(BackupTest, AdmitsExactlyNMinusBInAnyOrderWithoutDeadlock) {
  struct Case {
    std::vector<int> steps;
    int backup;
  };
  int orders = 0;
  for (const Case& c :
       {Case{{3}, 0}, Case{{2, 2}, 0}, Case{{3, 3}, 1}, Case{{3, 1}, 0}, Case{{1, 3}, 1}, Case{{0, 2}, 1},
        Case{{2, 2, 2}, 1}, Case{{1, 1, 1}, 0}, Case{{2, 2, 2}, 2}, Case{{1, 1, 0}, 1}}) {
    orders += ForEveryOrder([&] { return std::make_unique<BackupWorld>(c.steps, c.backup); });
  }
  EXPECT_GT(orders, 10000);
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

TEST(LeavingTest, NoAsynchronousWorkerWaitsForAnother) {
  const auto machine = MakeAsynchronous(2);
  EXPECT_TRUE(machine->OnLeave(1).may_read.empty());
  EXPECT_EQ(machine->OnPush(0, 0).may_read, std::vector<int>{0});
  EXPECT_FALSE(machine->MayPush(1, 0).ok());
  EXPECT_TRUE(machine->WaitsFor().workers.empty());
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

}  // namespace
}  // namespace psring
