#include "ps_server/shard/helpers.h"

namespace psring {

Helpers::~Helpers() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    begun_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void Helpers::Take(Job& job, int thread) {
  for (int item; (item = job.next++) < job.count;) job.work(item, thread);
}

void Helpers::ForEach(int count, const std::function<void(int item, int thread)>& work) {
  if (count < 2 || threads_wanted_ == 0 || taken_.exchange(true)) {
    for (int item = 0; item < count; ++item) work(item, 0);
    return;
  }
  while (threads_.size() < static_cast<size_t>(threads_wanted_)) {
    threads_.emplace_back([this, thread = static_cast<int>(threads_.size()) + 1] { Help(thread); });
  }
  Job job{.work = work, .count = count};
  {
    MutexLock lock(mutex_);
    job_ = &job;
    begun_.NotifyAll();
  }
  Take(job, 0);
  {
    MutexLock lock(mutex_);
    job_ = nullptr;
    while (job.inside > 0) left_.Wait(mutex_);
  }
  taken_ = false;
}

void Helpers::Help(int thread) {
  MutexLock lock(mutex_);
  while (true) {
    while (!stopping_ && (job_ == nullptr || job_->next >= job_->count)) begun_.Wait(mutex_);
    if (stopping_) return;
    Job& job = *job_;
    ++job.inside;
    mutex_.Unlock();
    Take(job, thread);
    mutex_.Lock();
    if (--job.inside == 0) left_.NotifyAll();
  }
}

}  // namespace psring
