// A thread that is expected to block, for tests that act while it waits.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/deadline.h"

namespace psring {

// Waits until thread `id` of this process sleeps in the kernel. False after 20 s.
inline bool AwaitSleepOf(const std::atomic<pid_t>& id) {
  for (const MonotonicTime deadline = MonotonicNow() + absl::Seconds(20); MonotonicNow() < deadline;) {
    std::string stat;
    std::getline(std::ifstream("/proc/self/task/" + std::to_string(id) + "/stat"), stat);
    const size_t state = stat.rfind(") ");  // "ID (NAME) STATE ..."
    if (id != 0 && state != std::string::npos && stat[state + 2] == 'S') return true;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return false;
}

// Runs `body` on a thread; the constructor returns when it blocks, which must be in the wait that is tested.
class WaitingThread {
 public:
  explicit WaitingThread(std::function<void()> body)
      : thread_([this, body = std::move(body)] {
          id_ = gettid();
          body();
          returned_ = true;
        }) {
    EXPECT_TRUE(AwaitSleepOf(id_));
  }
  ~WaitingThread() { Join(); }

  bool returned() const { return returned_; }
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<pid_t> id_ = 0;
  std::atomic<bool> returned_ = false;
  std::thread thread_;  // last: it uses the other members
};

}  // namespace psring
