#include "ps_server/shard/staging_pool.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace psring {

bool StagingPool::FitsLocked(size_t bytes) const {
  return reserved_ <= window_ && bytes <= window_ - reserved_;
}

StagingPool::Share StagingPool::ShareLocked(size_t bytes) {
  reserved_ += bytes;
  return Share(this, [pool = shared_from_this(), bytes](const void*) { pool->GiveBack(bytes); });
}

StagingPool::Share StagingPool::Reserve(int who, size_t bytes) {
  PSRING_CHECK(bytes <= window_);
  MutexLock lock(mutex_);
  const auto place = std::ranges::find(queue_, who, &Waiting::who);
  if (place == queue_.end() && !(queue_.empty() && FitsLocked(bytes))) {
    queue_.push_back({.who = who, .bytes = bytes});
    return nullptr;
  }
  if (place != queue_.end()) {
    *place = {.who = who, .bytes = bytes};
    changed_.NotifyAll();
    if (place != queue_.begin() || !FitsLocked(bytes)) return nullptr;
    queue_.pop_front();
  }
  return ShareLocked(bytes);
}

StagingPool::Share StagingPool::ReserveAnyway(size_t bytes) {
  MutexLock lock(mutex_);
  return ShareLocked(bytes);
}

void StagingPool::GiveBack(size_t bytes) {
  MutexLock lock(mutex_);
  reserved_ -= bytes;
  changed_.NotifyAll();
}

void StagingPool::LeaveQueue(int who) {
  MutexLock lock(mutex_);
  std::erase_if(queue_, [who](const Waiting& waiting) { return waiting.who == who; });
  changed_.NotifyAll();
}

absl::StatusOr<std::shared_ptr<Buffer>> StagingPool::Take(Share share, size_t bytes) {
  auto buffer = std::make_unique<Buffer>();
  bool found = false;
  {
    std::vector<Buffer> superfluous;  // freed without the lock, before more is allocated
    MutexLock lock(mutex_);
    if (const auto same = idle_.find(bytes); same != idle_.end()) {
      *buffer = std::move(idle_.extract(same).mapped());
      found = true;
    } else {
      allocated_ += bytes;
      while (allocated_ > std::max(window_, reserved_) && !idle_.empty()) {
        allocated_ -= idle_.begin()->first;
        superfluous.push_back(std::move(idle_.extract(idle_.begin()).mapped()));
      }
      peak_ = std::max(peak_, allocated_);
    }
  }
  if (!found) {
    absl::StatusOr<Buffer> fresh =
        memory_ == Memory::kPinned ? device_.AllocateOnHost(bytes) : device_.Allocate(bytes);
    if (!fresh.ok()) {
      MutexLock lock(mutex_);
      allocated_ -= bytes;
      return fresh.status();
    }
    *buffer = std::move(fresh).value();
  }
  // Returns the buffer before its share.
  return std::shared_ptr<Buffer>(buffer.release(),
                                 [pool = shared_from_this(), share = std::move(share)](Buffer* used) mutable {
                                   pool->Return(std::move(*used));
                                   delete used;
                                   share.reset();
                                 });
}

void StagingPool::Return(Buffer buffer) {
  MutexLock lock(mutex_);
  const size_t bytes = buffer.bytes();
  idle_.emplace(bytes, std::move(buffer));
}

std::shared_ptr<const void> StagingPool::Lend(std::shared_ptr<const void> buffer, int reader) {
  {
    MutexLock lock(mutex_);
    ++readers_[reader];
  }
  const void* memory = buffer.get();
  return std::shared_ptr<const void>(
      memory, [pool = shared_from_this(), buffer = std::move(buffer), reader](const void*) mutable {
        {
          MutexLock lock(pool->mutex_);
          if (--pool->readers_[reader] == 0) pool->readers_.erase(reader);
        }
        buffer.reset();
      });
}

std::optional<int> StagingPool::AwaitCall() {
  MutexLock lock(mutex_);
  while (!closed_) {
    if (!queue_.empty() && !queue_.front().called && FitsLocked(queue_.front().bytes)) {
      queue_.front().called = true;
      return queue_.front().who;
    }
    changed_.Wait(mutex_);
  }
  return std::nullopt;
}

void StagingPool::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  changed_.NotifyAll();
}

std::vector<int> StagingPool::queued() const {
  MutexLock lock(mutex_);
  std::vector<int> all;
  for (const Waiting& waiting : queue_) all.push_back(waiting.who);
  return all;
}

std::vector<int> StagingPool::readers() const {
  MutexLock lock(mutex_);
  std::vector<int> all;
  for (const auto& [reader, count] : readers_) all.push_back(reader);
  return all;
}

size_t StagingPool::peak_bytes() const {
  MutexLock lock(mutex_);
  return peak_;
}

}  // namespace psring
