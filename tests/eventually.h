// For tests that wait for a state of another thread or process.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/deadline.h"

namespace psring {

// Waits until `condition()` holds; false: not within `timeout`.
template <typename Condition>
bool Eventually(const Condition& condition, absl::Duration timeout = absl::Minutes(1)) {
  const MonotonicTime deadline = MonotonicNow() + timeout;
  while (!condition()) {
    if (MonotonicNow() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

}  // namespace psring
