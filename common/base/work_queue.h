// A thread that processes a queue: the implementation of background streams.
#pragma once

#include <pthread.h>

#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "common/base/mutex.h"

namespace psring {

class WorkQueue {
 public:
  // `name` labels the thread; the kernel keeps 15 characters.
  explicit WorkQueue(const std::string& name) : thread_([this] { Work(); }) {
    pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
  }
  // Runs what is queued, then returns.
  ~WorkQueue() {
    {
      MutexLock lock(mutex_);
      closing_ = true;
      not_idle_.NotifyOne();
    }
    thread_.join();
  }

  // From any thread; items run one at a time, in order.
  void Push(std::function<void()> item) {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(item));
    not_idle_.NotifyOne();
  }

 private:
  void Work() {
    while (true) {
      std::function<void()> item;
      {
        MutexLock lock(mutex_);
        while (queue_.empty() && !closing_) not_idle_.Wait(mutex_);
        if (queue_.empty()) return;
        item = std::move(queue_.front());
        queue_.pop_front();
      }
      item();
    }
  }

  Mutex mutex_;
  CondVar not_idle_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the other members
};

}  // namespace psring
