// What a server must remember to go on after its death: weights, optimizer state, versions, samples, and what
// it takes to apply each push exactly once. Where it is kept is a store's affair (checkpoint_file.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/measure/trace.h"
#include "ps_server/consistency/consistency.h"
#include "ps_server/protocol/server_job.h"

namespace psring {

// What happened so far. Payload is that of exchanges: gradients in, weights out; the weights of Join and
// Fetch are not in it.
struct ServerStats {
  int64_t pushes = 0;  // a worker's gradient of a bucket
  Traffic payload;
  std::vector<int64_t> staleness_histogram;   // index: staleness
  std::vector<int64_t> worker_pushes;         // by worker
  std::vector<int64_t> worker_staleness_sum;  // by worker
  int64_t dropped_gradients = 0;              // backup workers: whole gradients that came too late
  std::vector<int64_t> worker_dropped;        // by worker
  int64_t restarts = 0;                       // this job has gone on after a server's death so often
  int64_t answered_again = 0;                 // pushes; not kept in checkpoints
  size_t staging_peak_bytes = 0;              // StagingPool::peak_bytes; not kept in checkpoints
  int64_t lost_updates = 0;                   // asynchronous: pushes of a bucket that went down with a server
  std::vector<int64_t> lost_workers;          // in the order of their loss
  std::vector<int64_t> lost_at_step;          // their step then
};

struct Checkpoint {
  ServerJob job;
  int64_t step = 0;       // synchronous: to go on with; else about so many steps of each worker are in it
  bool finished = false;  // all workers have made their last step
  std::vector<Consistency::State> buckets;
  std::vector<int64_t> samples;  // applied, by bucket
  std::vector<float> values;     // the weights, then each slot of the optimizer
  ServerStats stats;
};

class CheckpointStore {
 public:
  virtual ~CheckpointStore() = default;
  // On return it is safe, whatever happens next; of older ones the newest are left, at least one.
  virtual absl::Status Save(const Checkpoint& checkpoint) = 0;
  // The newest that is whole and not beyond step `until`, nothing where there is none; those beyond it go,
  // since the job will not come that way again.
  virtual absl::StatusOr<std::optional<Checkpoint>> Load(int64_t until = INT64_MAX) = 0;
  // The job has ended well: nobody will go on with it.
  virtual void Clear() = 0;
};

}  // namespace psring
