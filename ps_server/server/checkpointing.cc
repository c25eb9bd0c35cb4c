#include "ps_server/server/checkpointing.h"

#include <utility>

#include "common/base/deadline.h"

namespace psring {

Checkpointing::Checkpointing(CheckpointStore* store, int64_t every,
                             std::function<void(const absl::Status&)> on_error)
    : store_(store), every_(every), on_error_(std::move(on_error)) {
  if (enabled()) writer_ = std::thread([this] { Loop(); });
}

Checkpointing::~Checkpointing() {
  if (!enabled()) return;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  writer_.join();
}

void Checkpointing::Begin(bool each_alone, int workers, size_t buckets) {
  each_alone_ = each_alone;
  workers_ = workers;
  buckets_ = buckets;
}

void Checkpointing::NoteVersion(int bucket, int64_t version) {
  if (!enabled()) return;
  if (each_alone_) {
    if (bucket == 0 && every_ > 0 && version % (every_ * workers_) == 0) due_ = true;
    return;
  }
  if (!asked_ && (every_ == 0 || version % every_ != 0)) return;
  MutexLock lock(mutex_);
  if (version > version_) {
    version_ = version;
    reached_ = 0;
  }
  if (version == version_ && ++reached_ == buckets_) due_ = true;
}

bool Checkpointing::AwaitWritten(MonotonicTime deadline) {
  {
    MutexLock lock(mutex_);
    while ((asked_ || writes_ > 0) && MonotonicNow() < deadline) changed_.WaitUntil(mutex_, deadline);
  }
  Flush();
  return !asked_;
}

void Checkpointing::Write(Checkpoint checkpoint) {
  MutexLock lock(mutex_);
  asked_ = false;  // not after a wait: a request during it needs a newer checkpoint
  ++writes_;
  while (next_.has_value() || writing_) changed_.Wait(mutex_);
  next_ = std::move(checkpoint);
  --writes_;
  changed_.NotifyAll();
}

void Checkpointing::Flush() {
  MutexLock lock(mutex_);
  while (next_.has_value() || writing_) changed_.Wait(mutex_);
}

void Checkpointing::Loop() {
  while (true) {
    std::optional<Checkpoint> taken;
    {
      MutexLock lock(mutex_);
      while (!next_.has_value() && !stopping_) changed_.Wait(mutex_);
      if (!next_.has_value()) return;
      taken = std::exchange(next_, std::nullopt);
      writing_ = true;
    }
    const absl::Status saved = store_->Save(*taken);
    taken.reset();
    if (!saved.ok()) on_error_(saved);
    MutexLock lock(mutex_);
    writing_ = false;
    changed_.NotifyAll();
  }
}

}  // namespace psring
