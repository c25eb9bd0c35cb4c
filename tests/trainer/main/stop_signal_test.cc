#include "trainer/main/stop_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <map>

#include "common/base/deadline.h"

namespace psring {
namespace {

TEST(StopSignal, AFailureAbortsOnlyTheOtherRanks) {
  StopSignal stop;
  std::map<int, absl::Status> aborted;
  for (int rank : {3, 4, 5})
    stop.OnStop(rank, [&aborted, rank](absl::Status why) { aborted[rank] = std::move(why); });
  stop.OnStop(5, nullptr);  // it has returned
  stop.AbortOthers(4, absl::InternalError("rank 4: no more"));
  ASSERT_EQ(aborted.size(), 1);
  EXPECT_EQ(aborted[3].message(), "rank 4: no more");
  EXPECT_EQ(stop.signal(), 0);
  stop.OnStop(6, [&](absl::Status why) { aborted[6] = std::move(why); });
  EXPECT_EQ(aborted[6].message(), "rank 4: no more") << "it was not connected before";
}

TEST(StopSignal, ASignalAbortsEveryRankAfterTheLongestPatience) {
  StopSignal stop;
  Mutex mutex;
  CondVar changed;
  std::map<int, absl::Status> aborted;
  const MonotonicTime begin = MonotonicNow();
  for (int rank : {0, 1}) {
    stop.OnStop(
        rank,
        [&, rank](absl::Status why) {
          MutexLock lock(mutex);
          aborted[rank] = std::move(why);
          changed.NotifyAll();
        },
        [rank] { return rank == 0 ? absl::Milliseconds(200) : absl::ZeroDuration(); });
  }
  kill(getpid(), SIGTERM);
  {
    MutexLock lock(mutex);
    const MonotonicTime deadline = MonotonicNow() + absl::Seconds(30);
    while (aborted.size() < 2 && MonotonicNow() < deadline) changed.WaitUntil(mutex, deadline);
  }
  EXPECT_GE(MonotonicNow() - begin, absl::Milliseconds(200));
  EXPECT_EQ(stop.signal(), SIGTERM);
  for (int rank : {0, 1}) EXPECT_EQ(aborted[rank].message(), "stopped by SIGTERM");
  // A failure after the signal is a consequence of it and aborts no other rank.
  aborted.clear();
  stop.AbortOthers(0, absl::InternalError("a consequence"));
  EXPECT_TRUE(aborted.empty());
  // A rank that connects after the signal is aborted immediately.
  stop.OnStop(2, [&](absl::Status why) { aborted[2] = std::move(why); });
  EXPECT_EQ(aborted[2].message(), "stopped by SIGTERM");
  for (int rank : {0, 1, 2}) stop.OnStop(rank, nullptr);
}

TEST(StopSignal, LeavesAnIgnoredSigintIgnored) {
  signal(SIGINT, SIG_IGN);
  {
    StopSignal stop;
    Mutex mutex;
    CondVar changed;
    bool aborted = false;
    stop.OnStop(0, [&](const absl::Status&) {
      MutexLock lock(mutex);
      aborted = true;
      changed.NotifyAll();
    });
    for (const int signal : {SIGINT, SIGTERM}) kill(getpid(), signal);
    {
      MutexLock lock(mutex);
      const MonotonicTime deadline = MonotonicNow() + absl::Seconds(30);
      while (!aborted && MonotonicNow() < deadline) changed.WaitUntil(mutex, deadline);
    }
    EXPECT_EQ(stop.signal(), SIGTERM);
    stop.OnStop(0, nullptr);
  }
  signal(SIGINT, SIG_DFL);
}

}  // namespace
}  // namespace psring
