#include "ps_server/server/checkpoint_writer.h"

#include <utility>

namespace psring {

CheckpointWriter::CheckpointWriter(CheckpointStore& store, std::function<void(const absl::Status&)> on_error)
    : store_(store), on_error_(std::move(on_error)), thread_([this] { Loop(); }) {}

CheckpointWriter::~CheckpointWriter() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void CheckpointWriter::Write(Checkpoint checkpoint) {
  MutexLock lock(mutex_);
  while (next_.has_value() || writing_) changed_.Wait(mutex_);
  next_ = std::move(checkpoint);
  changed_.NotifyAll();
}

void CheckpointWriter::Flush() {
  MutexLock lock(mutex_);
  while (next_.has_value() || writing_) changed_.Wait(mutex_);
}

void CheckpointWriter::Loop() {
  while (true) {
    std::optional<Checkpoint> taken;
    {
      MutexLock lock(mutex_);
      while (!next_.has_value() && !stopping_) changed_.Wait(mutex_);
      if (!next_.has_value()) return;
      taken = std::exchange(next_, std::nullopt);
      writing_ = true;
      changed_.NotifyAll();
    }
    const absl::Status saved = store_.Save(*taken);
    taken.reset();
    if (!saved.ok()) on_error_(saved);
    MutexLock lock(mutex_);
    writing_ = false;
    changed_.NotifyAll();
  }
}

}  // namespace psring
