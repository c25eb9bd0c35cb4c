// The guarantees of bounded staleness, one per test, and the staleness of asynchronous gradients, over every
// interleaving of small jobs.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ps_server/consistency/consistency.h"
#include "tests/ps_server/consistency/every_state.h"

namespace psring {
namespace {

// `steps`: of each worker, before it leaves.
struct BoundedJob {
  std::vector<int> steps;
  int bound = 1;  // K
  int buckets = 1;

  int workers() const { return static_cast<int>(steps.size()); }
  std::string name() const {
    return absl::StrCat("ssp:", bound, ", steps ", absl::StrJoin(steps, " "), ", ", buckets, " buckets");
  }
};

// The maxima over all interleavings of a job.
struct Seen {
  int64_t spread = 0;     // of the clocks of the workers that train
  int64_t too_late = -1;  // c - s: an update of clock s was made after a worker had reached clock c
  int64_t staleness =
      0;  // updates between the weights that a gradient was computed on and the gradient's own update

  void Add(const Seen& other) {
    spread = std::max(spread, other.spread);
    too_late = std::max(too_late, other.too_late);
    staleness = std::max(staleness, other.staleness);
  }
};

// A worker pushes its buckets in order, waits for all answers, and continues with their weights. One action
// per worker: its next push.
class BoundedWorld {
 public:
  BoundedWorld(const BoundedJob& job, Seen& seen) : job_(job), seen_(seen), workers_(job.steps.size()) {
    for (int i = 0; i < job.buckets; ++i) machines_.push_back(MakeBoundedStaleness(job.workers(), job.bound));
    for (Worker& worker : workers_) worker.read.resize(static_cast<size_t>(job.buckets));
    for (int i = 0; i < job.workers(); ++i) LeaveIfDone(i);
  }

  int actions() const { return job_.workers(); }
  bool Can(int worker) const {
    const Worker& w = workers_[worker];
    return !w.left && w.next_bucket < job_.buckets;
  }
  bool over() const { return std::ranges::all_of(workers_, &Worker::left); }
  void Do(int worker) {
    Worker& w = workers_[worker];
    const int bucket = w.next_bucket++;
    Consistency& machine = *machines_[bucket];
    seen_.staleness = std::max(seen_.staleness, machine.version() - w.read[bucket]);
    // Earlier answers lack this update, because they contain the weights of their time.
    for (const Worker& other : workers_) seen_.too_late = std::max(seen_.too_late, other.clock - w.clock);
    ASSERT_TRUE(machine.MayPush(worker, w.clock).ok()) << machine.MayPush(worker, w.clock);
    const Consistency::Decision decision = machine.OnPush(worker, w.clock);
    ASSERT_EQ(decision.apply_count, 1);
    const bool waits = std::ranges::count(decision.may_read, worker) == 0;
    EXPECT_EQ(machine.MayPush(worker, w.clock + 1).ok(), !waits);
    Read(bucket, decision);
    int64_t slowest = INT64_MAX, fastest = INT64_MIN;
    for (const Worker& other : workers_) {
      if (other.left) continue;
      slowest = std::min(slowest, other.clock);
      fastest = std::max(fastest, other.clock);
    }
    if (fastest >= slowest) seen_.spread = std::max(seen_.spread, fastest - slowest);
  }
  std::vector<int64_t> State() const {
    std::vector<int64_t> state;
    for (const Worker& w : workers_) {
      state.insert(state.end(), {w.clock, w.next_bucket, w.replies, w.left});
      state.insert(state.end(), w.read.begin(), w.read.end());
    }
    return state;
  }

 private:
  struct Worker {
    int64_t clock = 0;
    int next_bucket = 0;
    int64_t replies = 0;  // one bit per bucket
    bool left = false;
    std::vector<int64_t> read = {};  // version, by bucket
  };

  void Read(int bucket, const Consistency::Decision& decision) {
    ASSERT_TRUE(decision.accept) << decision.reason;
    for (const int reader : decision.may_read) {
      Worker& r = workers_[reader];
      r.read[bucket] = machines_[bucket]->version();
      r.replies |= int64_t{1} << bucket;
      if (r.replies + 1 != int64_t{1} << job_.buckets) continue;
      r.replies = 0;
      r.next_bucket = 0;
      ++r.clock;
      LeaveIfDone(reader);
    }
  }
  void LeaveIfDone(int worker) {
    Worker& w = workers_[worker];
    if (w.clock < job_.steps[worker]) return;
    w.left = true;
    for (int bucket = 0; bucket < job_.buckets; ++bucket) {
      const Consistency::Decision decision = machines_[bucket]->OnLeave(worker);
      EXPECT_EQ(decision.apply_count, 0);
      Read(bucket, decision);
    }
  }

  const BoundedJob& job_;
  Seen& seen_;
  std::vector<std::unique_ptr<Consistency>> machines_;
  std::vector<Worker> workers_;
};

// Calls `check(job, maxima)` for each of these jobs.
template <typename Check>
void ForEveryJob(const std::vector<BoundedJob>& jobs, const Check& check) {
  for (const BoundedJob& job : jobs) {
    SCOPED_TRACE(job.name());
    Seen seen;
    const int states = ForEveryState<BoundedWorld>([&] { return std::make_unique<BoundedWorld>(job, seen); });
    EXPECT_GE(states, *std::ranges::max_element(job.steps));
    check(job, seen);
  }
}

const std::vector<BoundedJob> kJobs = {
    {{4}, 1},          {{0, 3}, 1},       {{4, 4}, 1},       {{5, 5}, 2},       {{6, 6}, 3},
    {{6, 2}, 1},       {{2, 6}, 3},       {{3, 3}, 1, 2},    {{4, 4}, 2, 2},    {{4, 1}, 1, 2},
    {{3, 3}, 1, 3},    {{4, 4, 4}, 1},    {{4, 4, 4}, 2},    {{4, 2, 1}, 1},    {{1, 0, 4}, 2},
    {{2, 2, 2}, 1, 2}, {{3, 2, 1}, 1, 2}, {{3, 3, 3, 3}, 1}, {{3, 3, 3, 3}, 2}, {{3, 1, 2, 0}, 1},
    {{3}, 1, 2},       {{3, 1}, 1, 2},    {{0, 3}, 1, 2},    {{4, 2}, 1, 2},    {{2, 2, 1}, 1, 2},
};

TEST(BoundedStaleness, ClocksDifferByAtMostK) {
  ForEveryJob(kJobs, [](const BoundedJob& job, const Seen& seen) { EXPECT_LE(seen.spread, job.bound); });
}

TEST(BoundedStaleness, AtClockCUpdatesUpToClockCMinusKMinus1AreVisible) {
  // No update of clock s is made after a worker has reached s + K + 1.
  ForEveryJob(kJobs, [](const BoundedJob& job, const Seen& seen) { EXPECT_LE(seen.too_late, job.bound); });
}

TEST(BoundedStaleness, StalenessIsAtMost2KPlus1TimesNMinus1) {
  ForEveryJob(kJobs, [](const BoundedJob& job, const Seen& seen) {
    EXPECT_LE(seen.staleness, (2 * job.bound + 1) * (job.workers() - 1));
  });
}

// Otherwise the tests above would pass if all workers waited for all.
TEST(BoundedStaleness, EachBoundIsReached) {
  ForEveryJob({{{6, 6}, 1}, {{8, 8}, 2}, {{5, 5, 5}, 1}, {{7, 7}, 1, 2}},
              [](const BoundedJob& job, const Seen& seen) {
                EXPECT_EQ(seen.spread, job.bound);
                EXPECT_EQ(seen.too_late, job.bound);
                EXPECT_EQ(seen.staleness, (2 * job.bound + 1) * (job.workers() - 1));
              });
}

// Each gradient is computed on the weights that its worker's last push made. Calls `check` with the workers
// and staleness of every order of pushes, in which worker i pushes `steps[i]` times.
void ForEveryAsynchronousOrder(
    const std::vector<int>& steps,
    const std::function<void(const std::vector<int>& pusher, const std::vector<int64_t>& staleness)>& check) {
  ForEveryOrder(steps, AnyMayPush, [&](const std::vector<int>& order) {
    const auto machine = MakeAsynchronous(static_cast<int>(steps.size()));
    std::vector<int64_t> read(steps.size(), 0), next(steps.size(), 0), staleness;
    for (const int worker : order) {
      staleness.push_back(machine->version() - read[worker]);
      const Consistency::Decision decision = machine->OnPush(worker, next[worker]++);
      ASSERT_EQ(decision.may_read, std::vector<int>{worker})
          << "only the pushing worker is answered, immediately";
      read[worker] = machine->version();
    }
    check(order, staleness);
  });
}

// Equal workers and unequal ones.
const std::vector<std::vector<int>> kAsynchronousJobs = {{4},       {3, 3},    {1, 5},       {2, 2, 2},
                                                         {4, 1, 2}, {3, 3, 1}, {1, 1, 1, 1}, {2, 1, 3, 1}};

TEST(AsynchronousStaleness, TheMeanIsNMinus1WhileAllWorkersPush) {
  for (const std::vector<int>& steps : kAsynchronousJobs) {
    SCOPED_TRACE(absl::StrJoin(steps, " "));
    const int64_t others = std::ssize(steps) - 1;
    int orders = 0;
    ForEveryAsynchronousOrder(
        steps, [&](const std::vector<int>& pusher, const std::vector<int64_t>& staleness) {
          ++orders;
          // Each update is missed by the gradients that are in transit: N - 1, and fewer as workers finish.
          std::vector<int> left = steps;
          int64_t missed = 0, while_all_push = 0;
          for (const int worker : pusher) {
            --left[worker];
            int64_t in_transit = 0;
            for (size_t other = 0; other < steps.size(); ++other) {
              in_transit += static_cast<int>(other) != worker && left[other] > 0;
            }
            missed += in_transit;
            while_all_push += in_transit == others;
          }
          const int64_t sum = std::accumulate(staleness.begin(), staleness.end(), int64_t{0});
          EXPECT_EQ(sum, missed);
          EXPECT_LE(sum, others * std::ssize(pusher));
          EXPECT_GE(sum, others * while_all_push);
        });
    EXPECT_GE(orders, 1);
  }
}

TEST(AsynchronousStaleness, SumsToTheUpdatesOfTheOthers) {
  for (const std::vector<int>& steps : kAsynchronousJobs) {
    SCOPED_TRACE(absl::StrJoin(steps, " "));
    ForEveryAsynchronousOrder(
        steps, [&](const std::vector<int>& pusher, const std::vector<int64_t>& staleness) {
          for (size_t worker = 0; worker < steps.size(); ++worker) {
            int64_t own_staleness = 0, own = 0, of_others = 0;
            for (size_t i = 0; own < steps[worker]; ++i) {
              if (pusher[i] != static_cast<int>(worker)) {
                ++of_others;
              } else {
                ++own;
                own_staleness += staleness[i];
              }
            }
            EXPECT_EQ(own_staleness, of_others) << "worker " << worker << ", until its last push";
          }
        });
  }
}

}  // namespace
}  // namespace psring
