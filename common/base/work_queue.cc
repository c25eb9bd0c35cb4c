#include "common/base/work_queue.h"

#include <pthread.h>

#include <utility>

namespace psring {

WorkQueue::WorkQueue(const std::string& name) : thread_([this] { Work(); }) {
  pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

WorkQueue::~WorkQueue() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
    not_idle_.NotifyOne();
  }
  thread_.join();
}

void WorkQueue::Push(std::function<void()> item) {
  MutexLock lock(mutex_);
  queue_.push_back(std::move(item));
  not_idle_.NotifyOne();
}

void WorkQueue::Work() {
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

}  // namespace psring
