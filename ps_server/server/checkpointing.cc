#include "ps_server/server/checkpointing.h"

#include <utility>

#include "absl/time/clock.h"

namespace psring {

Checkpointing::Checkpointing(CheckpointStore* store, int64_t every,
                             std::function<void(const absl::Status&)> on_error)
    : every_(every) {
  if (store != nullptr) writer_ = std::make_unique<CheckpointWriter>(*store, std::move(on_error));
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

bool Checkpointing::AwaitWritten(absl::Time deadline) {
  {
    MutexLock lock(mutex_);
    while ((asked_ || writes_ > 0) && absl::Now() < deadline) written_.WaitUntil(mutex_, deadline);
  }
  Flush();
  return !asked_;
}

void Checkpointing::Write(Checkpoint checkpoint) {
  {
    MutexLock lock(mutex_);
    asked_ = false;  // not after a wait: a request during it needs a newer checkpoint
    ++writes_;
  }
  writer_->Write(std::move(checkpoint));
  MutexLock lock(mutex_);
  --writes_;
  written_.NotifyAll();
}

}  // namespace psring
