#include "ps_server/server/watchdog.h"

#include <gtest/gtest.h>

#include <latch>

namespace psring {
namespace {

TEST(WatchdogTest, ChecksWhenItIsWoken) {
  std::latch checked(1);
  Watchdog watchdog(
      absl::Hours(1), absl::Hours(1), [&] { checked.try_wait() ? void() : checked.count_down(); },
      [] { ADD_FAILURE() << "silence"; });
  watchdog.Wake();
  checked.wait();
  EXPECT_LT(watchdog.silence(), absl::Hours(1));
}

TEST(WatchdogTest, ReportsSilenceUntilSomethingArrives) {
  std::atomic<int> silent = 0;
  Watchdog watchdog(
      absl::Milliseconds(1), absl::Milliseconds(20), [] {},
      [&] {
        ++silent;
        silent.notify_all();
      });
  for (int seen; (seen = silent) < 2;) silent.wait(seen);
  watchdog.NoteArrival();
  EXPECT_LT(watchdog.silence(), absl::Seconds(10));
}

}  // namespace
}  // namespace psring
