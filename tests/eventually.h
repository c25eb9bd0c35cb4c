// For tests that wait for a state of another thread or process.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace psring {

// Waits until `condition()` holds; false: not within `timeout`.
template <typename Condition>
bool Eventually(const Condition& condition, absl::Duration timeout = absl::Minutes(1)) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!condition()) {
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

}  // namespace psring
