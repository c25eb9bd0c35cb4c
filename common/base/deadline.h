// Points in time for deadlines and measured durations, all of one clock, CLOCK_MONOTONIC: setting the wall
// clock does not change it, and time that the machine sleeps does not count. The wall clock is for display,
// file names and certificates (wall_time.h).
#pragma once

#include <time.h>

#include <cerrno>
#include <chrono>
#include <compare>
#include <cstdint>

#include "absl/time/time.h"

namespace psring {

// Nanoseconds since the machine started, without those that it slept. One clock for all processes of a host.
inline int64_t MonotonicNanos() {
  const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since_start).count();
}

// Arithmetic saturates, as absl::Time's does.
class MonotonicTime {
 public:
  constexpr MonotonicTime() = default;  // when the machine started
  static constexpr MonotonicTime InfiniteFuture() { return MonotonicTime(absl::InfiniteDuration()); }
  static constexpr MonotonicTime InfinitePast() { return MonotonicTime(-absl::InfiniteDuration()); }
  static constexpr MonotonicTime FromNanos(int64_t since_start) {
    return MonotonicTime(absl::Nanoseconds(since_start));
  }

  absl::Duration since_start() const { return since_start_; }

  MonotonicTime& operator+=(absl::Duration by) {
    since_start_ += by;
    return *this;
  }
  friend MonotonicTime operator+(MonotonicTime time, absl::Duration by) { return time += by; }
  friend MonotonicTime operator-(MonotonicTime time, absl::Duration by) { return time += -by; }
  friend absl::Duration operator-(MonotonicTime a, MonotonicTime b) {
    return a.since_start_ - b.since_start_;
  }
  friend bool operator==(MonotonicTime a, MonotonicTime b) { return a.since_start_ == b.since_start_; }
  friend std::strong_ordering operator<=>(MonotonicTime a, MonotonicTime b) {
    return a.since_start_ < b.since_start_    ? std::strong_ordering::less
           : a.since_start_ == b.since_start_ ? std::strong_ordering::equal
                                              : std::strong_ordering::greater;
  }

 private:
  explicit constexpr MonotonicTime(absl::Duration since_start) : since_start_(since_start) {}
  absl::Duration since_start_;
};

inline MonotonicTime MonotonicNow() { return MonotonicTime::FromNanos(MonotonicNanos()); }

inline void SleepUntil(int64_t monotonic_ns) {
  const timespec until = {.tv_sec = monotonic_ns / 1'000'000'000, .tv_nsec = monotonic_ns % 1'000'000'000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

}  // namespace psring
