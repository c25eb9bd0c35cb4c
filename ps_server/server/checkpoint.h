// What a server needs to continue after a restart: weights, optimizer state, versions, samples, and the state
// with which it applies each push exactly once. checkpoint_file.h stores it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/measure/records.h"
#include "common/measure/trace.h"
#include "ps_server/consistency/consistency.h"
#include "ps_server/protocol/server_job.h"

namespace psring {

// The last entry of the histogram includes greater ones.
inline constexpr size_t kMaxStaleness = 1 << 20;

// Payload: gradients received and weights sent in exchanges, without the weights of Join and Fetch.
struct ServerStats {
  int64_t pushes = 0;  // a worker's gradient of a bucket
  Traffic payload;
  std::vector<int64_t> staleness_histogram;   // index: staleness, at most kMaxStaleness
  std::vector<int64_t> worker_pushes;         // by worker
  std::vector<int64_t> worker_staleness_sum;  // by worker
  int64_t dropped_gradients = 0;              // backup workers: gradients that arrived too late
  std::vector<int64_t> worker_dropped;        // by worker
  int64_t restarts = 0;                       // how often the job continued after a restart of this server
  int64_t answered_again = 0;                 // repeated pushes; not in checkpoints
  size_t staging_peak_bytes = 0;              // StagingPool::peak_bytes; not in checkpoints
  std::vector<int64_t> lost_workers;          // in order of loss
  std::vector<int64_t> lost_at_step;          // by lost worker: its step
};

// The record of server number `server`; peak_memory_mb is this process's.
ServerResult ResultOf(int server, const ServerStats& stats);

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

}  // namespace psring
