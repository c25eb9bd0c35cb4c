// When a server takes a checkpoint, and the thread that writes it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>

#include "absl/status/status.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "ps_server/consistency/consistency.h"
#include "ps_server/server/checkpoint.h"

namespace psring {

// Thread-safe. Synchronous modes: a checkpoint is due at a version that all buckets have reached and none has
// passed. The replies of the last bucket to reach it are delayed until the copy is made: without them no
// worker makes the next step. Modes in which each push is an update: every bucket is copied in turn.
class Checkpointing {
 public:
  // `store`, which outlives this; null: no checkpoints. `every`: steps; 0: only when asked. `on_error` runs
  // on the writer's thread.
  Checkpointing(CheckpointStore* store, int64_t every, std::function<void(const absl::Status&)> on_error);

  ~Checkpointing();  // waits until everything is written

  bool enabled() const { return store_ != nullptr; }
  // Before the first NoteVersion.
  void Begin(bool each_alone, int workers, size_t buckets);

  void NoteVersion(int bucket, int64_t version);
  // Whether a checkpoint is due, once.
  bool TakeDue() { return due_ && due_.exchange(false); }

  // Requests a checkpoint as soon as one is possible. AwaitWritten: false if none was written by `deadline`.
  void Ask() { asked_ = true; }
  bool AwaitWritten(MonotonicTime deadline);

  // Writes it in the background, after waiting for the previous write.
  void Write(Checkpoint checkpoint);
  // Waits until everything is written.
  void Flush();

 private:
  void Loop();

  CheckpointStore* const store_;
  const int64_t every_;
  const std::function<void(const absl::Status&)> on_error_;
  bool each_alone_ = false;
  int workers_ = 1;
  size_t buckets_ = 0;
  std::atomic<bool> due_{false};
  std::atomic<bool> asked_{false};
  Mutex mutex_;
  CondVar changed_;
  int64_t version_ ABSL_GUARDED_BY(mutex_) = -1;
  size_t reached_ ABSL_GUARDED_BY(mutex_) = 0;  // buckets that have reached version_
  std::optional<Checkpoint> next_ ABSL_GUARDED_BY(mutex_);
  int writes_ ABSL_GUARDED_BY(mutex_) = 0;  // calls of Write that are waiting
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread writer_;  // last: it uses the above
};

}  // namespace psring
