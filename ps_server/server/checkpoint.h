// What a server needs to continue after a restart: weights, optimizer state, versions, samples, and the state
// with which it applies each push exactly once; and when it takes such a checkpoint. checkpoint_file.h stores
// it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/measure/records.h"
#include "ps_server/consistency/consistency.h"
#include "ps_server/protocol/server_job.h"

namespace psring {

// The last entry of the histogram includes greater ones.
inline constexpr size_t kMaxStaleness = 1 << 20;

// Of the result, a server's number and memory are set by ResultOf. Payload: gradients received and weights
// sent in exchanges, without the weights of Join and Fetch.
struct ServerStats : ServerResult {
  std::vector<int64_t> worker_pushes;         // by worker
  std::vector<int64_t> worker_staleness_sum;  // by worker
  std::vector<int64_t> worker_dropped;        // by worker
  int64_t answered_again = 0;                 // repeated pushes; not in checkpoints
  size_t staging_peak_bytes = 0;              // StagingPool::peak_bytes; not in checkpoints
};

// The record of server number `server`; peak_memory_mb is this process's.
ServerResult ResultOf(int server, ServerResult stats);

struct Checkpoint {
  ServerJob job;
  int64_t step = 0;       // synchronous: the next step; else about the number of steps of each worker
  bool finished = false;  // after the last step of all workers
  std::vector<Consistency::State> buckets;
  std::vector<int64_t> samples;  // applied, by bucket
  std::vector<float> values;     // the weights, then each slot of the optimizer
  ServerStats stats;
};

// DataLoss or InvalidArgument unless the job is valid, every list has the length that the job implies, and
// all numbers are within their bounds. Pure.
absl::Status ValidateCheckpoint(const Checkpoint& checkpoint);

class CheckpointStore {
 public:
  virtual ~CheckpointStore() = default;
  // When this returns, the checkpoint is durable. Keeps at least one older one.
  virtual absl::Status Save(const Checkpoint& checkpoint) = 0;
  // The newest intact one that is not after step `until`, or nullopt; deletes those after `until`.
  virtual absl::StatusOr<std::optional<Checkpoint>> Load(int64_t until = INT64_MAX) = 0;
  // Deletes all: the job has ended OK.
  virtual void Clear() = 0;
};

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
