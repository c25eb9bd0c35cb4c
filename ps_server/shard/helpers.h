// Threads that help whoever has work that can be cut into items: an update of many megabytes is bound by
// memory, which one core does not fill.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace psring {

class Helpers {
 public:
  // `threads`: beside the caller's own. They are started with the first work that has more than one item.
  explicit Helpers(int threads) : threads_wanted_(threads) {}
  ~Helpers();

  // Calls work(item, thread) for every item below `count` and returns when all is done. Items are taken in
  // ascending order. `thread` is 0 for the caller and 1, 2, ... for helpers: no two calls with the same one
  // run at once. Thread-safe; while somebody else is being helped a caller does its work alone.
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
  std::atomic<bool> taken_{false};    // somebody is being helped
  std::vector<std::thread> threads_;  // made by who has taken them
  Mutex mutex_;
  CondVar begun_, left_;
  Job* job_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace psring
