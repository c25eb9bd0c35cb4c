// A thread that checks a server's workers: periodically, when it is woken, and when nothing arrives from
// them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"

namespace psring {

class Watchdog {
 public:
  // On its thread: `check` at least every `interval`, then `on_silence` if nothing has arrived for `timeout`.
  Watchdog(absl::Duration interval, absl::Duration timeout, std::function<void()> check,
           std::function<void()> on_silence)
      : check_(std::move(check)), on_silence_(std::move(on_silence)), thread_([this, interval, timeout] {
          while (AwaitCheck(interval)) {
            check_();
            if (silence() >= timeout) on_silence_();
          }
        }) {}
  ~Watchdog() {
    Set(stopping_);
    thread_.join();
  }

  // Thread-safe.
  void NoteArrival() { last_arrival_ns_ = MonotonicNanos(); }
  absl::Duration silence() const { return absl::Nanoseconds(MonotonicNanos() - last_arrival_ns_); }
  void Wake() { Set(woken_); }  // checks soon

 private:
  void Set(bool& flag) {
    MutexLock lock(mutex_);
    flag = true;
    changed_.NotifyAll();
  }
  // False: it stops.
  bool AwaitCheck(absl::Duration interval) {
    MutexLock lock(mutex_);
    if (!stopping_ && !woken_) changed_.WaitUntil(mutex_, MonotonicNow() + interval);
    woken_ = false;
    return !stopping_;
  }

  const std::function<void()> check_, on_silence_;
  std::atomic<int64_t> last_arrival_ns_{MonotonicNanos()};
  Mutex mutex_;
  CondVar changed_;
  bool woken_ = false, stopping_ = false;  // under mutex_
  std::thread thread_;                     // last: it uses the above
};

}  // namespace psring
