#include "common/base/deadline.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/base/mutex.h"

namespace psring {
namespace {

TEST(MonotonicTime, IsOrderedAndSaturates) {
  const MonotonicTime now = MonotonicNow(), later = now + absl::Seconds(1);
  EXPECT_LT(now, later);
  EXPECT_EQ(later - now, absl::Seconds(1));
  EXPECT_EQ(later - absl::Seconds(1), now);
  EXPECT_EQ(std::min(MonotonicTime::InfiniteFuture(), later), later);
  EXPECT_LT(MonotonicTime::InfinitePast(), MonotonicTime());
  EXPECT_EQ(MonotonicTime::InfiniteFuture() - absl::Hours(1), MonotonicTime::InfiniteFuture());
  EXPECT_EQ(now + absl::InfiniteDuration(), MonotonicTime::InfiniteFuture());
  EXPECT_EQ(MonotonicTime::InfiniteFuture() - now, absl::InfiniteDuration());
}

TEST(MonotonicTime, OfAnyValueEndsAWait) {
  Mutex mutex;
  CondVar never;
  MutexLock lock(mutex);
  for (const MonotonicTime past : {MonotonicTime::InfinitePast(), MonotonicTime() - absl::Seconds(1),
                                   MonotonicTime(), MonotonicNow() - absl::Nanoseconds(1)}) {
    EXPECT_FALSE(never.WaitUntil(mutex, past));
  }
  const MonotonicTime soon = MonotonicNow() + absl::Milliseconds(2);
  while (never.WaitUntil(mutex, soon)) {
  }
  EXPECT_GE(MonotonicNow(), soon);
}

}  // namespace
}  // namespace psring
