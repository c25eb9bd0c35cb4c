// Writes checkpoints beside the training: one thread, one checkpoint at a time.
#pragma once

#include <functional>
#include <optional>
#include <thread>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "ps_server/server/checkpoint.h"

namespace psring {

class CheckpointWriter {
 public:
  // `on_error` hears, on the writer's thread, why a checkpoint could not be written. Both outlive this.
  CheckpointWriter(CheckpointStore& store, std::function<void(const absl::Status&)> on_error);
  ~CheckpointWriter();  // what has been handed over is written

  // Waits until the one before is written, then returns at once.
  void Write(Checkpoint checkpoint);
  // Waits until everything is.
  void Flush();

 private:
  void Loop();

  CheckpointStore& store_;
  const std::function<void(const absl::Status&)> on_error_;
  Mutex mutex_;
  CondVar changed_;
  std::optional<Checkpoint> next_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace psring
