// A thread that processes a queue: the implementation of background streams.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "common/base/mutex.h"

namespace psring {

class WorkQueue {
 public:
  // `name` labels the thread; the kernel keeps 15 characters.
  explicit WorkQueue(const std::string& name);
  // Runs what is queued, then returns.
  ~WorkQueue();

  // From any thread; items run one at a time, in order.
  void Push(std::function<void()> item);

 private:
  void Work();

  Mutex mutex_;
  CondVar not_idle_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the other members
};

}  // namespace psring
