#include "trainer/main/rank_threads.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"

namespace psring {
namespace {

// Ranks wait until it is opened or aborted.
class Gate {
 public:
  absl::Status Pass() {
    MutexLock lock(mutex_);
    const MonotonicTime deadline = MonotonicNow() + absl::Seconds(30);
    while (!open_ && why_.ok()) {
      if (!changed_.WaitUntil(mutex_, deadline) && !open_ && why_.ok()) {
        return absl::DeadlineExceededError("nobody came");
      }
    }
    return why_;
  }
  void Open() {
    MutexLock lock(mutex_);
    open_ = true;
    changed_.NotifyAll();
  }
  void Abort(const absl::Status& why) {
    MutexLock lock(mutex_);
    why_ = why;
    changed_.NotifyAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool open_ = false;
  absl::Status why_;
};

TEST(RankThreads, RunsEveryRankOnceOnItsOwnThread) {
  for (int count : {1, 2, 5}) {
    std::mutex mutex;
    std::set<int> ranks;
    std::set<std::thread::id> threads;
    RankThreads running({.first_rank = 6, .count = count});
    const auto failure = running.Run([&](int rank) {
      const std::scoped_lock lock(mutex);
      ranks.insert(rank);
      threads.insert(std::this_thread::get_id());
      return absl::OkStatus();
    });
    EXPECT_FALSE(failure.has_value());
    EXPECT_EQ(*ranks.begin(), 6);
    EXPECT_EQ(*ranks.rbegin(), 6 + count - 1);
    EXPECT_EQ(ranks.size(), count);
    EXPECT_EQ(threads.contains(std::this_thread::get_id()), count == 1);
  }
}

TEST(RankThreads, NamesTheFirstFailureAndAbortsTheOthers) {
  for (int guilty : {4, 5, 6}) {
    Gate gate;
    std::atomic<int> aborted = 0;
    RankThreads running({.first_rank = 4, .count = 3, .abort_others = [&](int rank, const absl::Status& why) {
                           EXPECT_EQ(rank, guilty);
                           ++aborted;
                           gate.Abort(why);
                         }});
    const auto failure = running.Run([&](int rank) -> absl::Status {
      if (rank == guilty) return absl::InternalError("out of paper");
      const absl::Status status = gate.Pass();
      EXPECT_EQ(status.message(), absl::StrCat("rank ", guilty, ": out of paper"));
      return status;
    });
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->rank, guilty);
    EXPECT_EQ(failure->status, absl::InternalError("out of paper"));
    EXPECT_EQ(aborted, 1);
  }
}

// A rank that closes its connections makes others fail before its own thread returns.
TEST(RankThreads, ReportsTheCauseAndNotItsConsequence) {
  Gate gone, noticed;
  RankThreads running({.count = 2});
  const auto failure = running.Run([&](int rank) -> absl::Status {
    if (rank == 1) {
      EXPECT_TRUE(gone.Pass().ok());
      const absl::Status consequence = absl::UnavailableError("rank 0 has left");
      running.Failed(1, consequence);
      noticed.Open();
      return consequence;
    }
    const absl::Status cause = absl::OutOfRangeError("diverged");
    running.Failed(0, cause);
    gone.Open();
    EXPECT_TRUE(noticed.Pass().ok());
    return cause;
  });
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->rank, 0);
  EXPECT_EQ(failure->status.message(), "diverged");
}

TEST(RankThreads, ReportsTheFailureOfASingleRank) {
  RankThreads running({.first_rank = 3});
  const auto failure = running.Run([](int) { return absl::InternalError("alone"); });
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->rank, 3);
}

TEST(RankThreads, RunsWorkOnTheMainThread) {
  for (int count : {1, 3}) {
    const std::thread::id main = std::this_thread::get_id();
    std::atomic<int> done = 0;
    RankThreads running({.count = count});
    const auto failure = running.Run([&](int rank) -> absl::Status {
      const absl::Status status = running.OnMainThread([&] {
        EXPECT_EQ(std::this_thread::get_id(), main);
        ++done;
        return rank == 1 ? absl::NotFoundError("no such program") : absl::OkStatus();
      });
      EXPECT_EQ(status.ok(), rank != 1);
      return absl::OkStatus();
    });
    EXPECT_FALSE(failure.has_value());
    EXPECT_EQ(done, count);
  }
}

TEST(RankThreads, DoesNotGiveUpOnRanksThatASignalStops) {
  Gate asked_again;  // after the patience is over
  int asked = 0;
  RankThreads running({.count = 2,
                       .is_stopping =
                           [&] {
                             if (++asked == 2) asked_again.Open();
                             return true;
                           },
                       .patience = absl::Milliseconds(1),
                       .give_up = [](const RankFailure&) { FAIL() << "give_up was called"; }});
  const auto failure = running.Run([&](int rank) -> absl::Status {
    if (rank == 0) return absl::CancelledError("stopped");
    return asked_again.Pass();
  });
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->rank, 0);
}

TEST(RankThreadsDeathTest, GivesUpWithTheFirstCauseIfARankDoesNotReturn) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Gate never;
        RankThreads running(
            {.count = 3, .patience = absl::Milliseconds(50), .give_up = [](const RankFailure& failure) {
               std::fprintf(stderr, "rank %d: %s\n", failure.rank,
                            std::string(failure.status.message()).c_str());
               _exit(3);
             }});
        running.Run([&](int rank) -> absl::Status {
          if (rank == 2) return absl::InternalError("the cause");
          return never.Pass();
        });
      },
      testing::ExitedWithCode(3), "rank 2: the cause");
}

}  // namespace
}  // namespace psring
