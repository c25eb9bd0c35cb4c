// Threads that share the parts of an update: it is limited by memory bandwidth, which one core cannot use up.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace psring {

class Helpers {
 public:
  // `threads`: in addition to the caller's. They start with the first call that has more than one item.
  explicit Helpers(int threads) : threads_wanted_(threads) {}
  ~Helpers();

  // Calls work(item, thread) for every item below `count`, starting in ascending order, and returns when all
  // have returned. `thread`: 0 for the caller, 1, 2, ... for helpers; no two calls with the same one run
  // concurrently. Thread-safe: while another caller uses the helpers, the calling thread works without them.
  void ForEach(int count, const std::function<void(int item, int thread)>& work);

 private:
  struct Job {
    const std::function<void(int, int)>& work;
    const int count;
    std::atomic<int> next{0};
    int inside = 0;  // helpers; under mutex_
  };
  static void Take(Job& job, int thread);
  void Help(int thread);

  const int threads_wanted_;
  std::atomic<bool> taken_{false};    // a caller uses the helpers
  std::vector<std::thread> threads_;  // created by that caller
  Mutex mutex_;
  CondVar begun_, left_;
  Job* job_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace psring
