#include "trainer/main/stop_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <map>

#include "common/base/deadline.h"
#include "tests/eventually.h"

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
  std::map<int, absl::Status> aborted;
  std::atomic<int> count = 0;
  const MonotonicTime begin = MonotonicNow();
  for (int rank : {0, 1}) {
    stop.OnStop(
        rank,
        [&, rank](absl::Status why) {
          aborted[rank] = std::move(why);
          ++count;
        },
        [rank] { return rank == 0 ? absl::Milliseconds(200) : absl::ZeroDuration(); });
  }
  kill(getpid(), SIGTERM);
  ASSERT_TRUE(Eventually([&] { return count == 2; }));
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
    std::atomic<bool> aborted = false;
    stop.OnStop(0, [&](const absl::Status&) { aborted = true; });
    for (const int signal : {SIGINT, SIGTERM}) kill(getpid(), signal);
    EXPECT_TRUE(Eventually([&] { return aborted.load(); }));
    EXPECT_EQ(stop.signal(), SIGTERM);
    stop.OnStop(0, nullptr);
  }
  signal(SIGINT, SIG_DFL);
}

}  // namespace
}  // namespace psring
