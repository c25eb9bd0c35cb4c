// The interface of a strategy: how the gradients of all ranks become updated weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/device/host_view.h"
#include "common/measure/records.h"
#include "common/measure/trace.h"

namespace psring {

// Flat buffers that outlive the strategy, on the device and as the host sees them, and the position at
// which training begins.
struct TrainingState {
  // With UnitMemory, as StrategyContext::shards plans them; of sharded weights with this rank's parts.
  HostView weights;
  HostView gradient;
  // State that is not trained. Strategies with a process group copy rank 0's to all ranks in every BeginStep;
  // empty: nothing to copy.
  HostView buffers = {};
  int weights_fd = -1;  // files of the host buffers that other processes may map; -1: none
  int gradient_fd = -1;
  // Handles of the GPU buffers for other processes of this host (cuda_device.h); empty: none.
  std::string weights_on_gpu = {}, gradient_on_gpu = {};
  int64_t step = 0;     // the first step; above 0 after resuming from a checkpoint
  int64_t samples = 0;  // in the updates before it
  int beyond = 0;       // asynchronous: updates beyond `step` of each worker
  // The optimizer's state at that step. Used: rank 0's; without communication each rank's own. Valid until
  // Start returns.
  bool has_slots = false;  // equal on all ranks
  std::vector<ConstSpan> slots = {};
  // If weights are sharded: after resuming (equal on all ranks), rank 0 has all of them on the host, which
  // replace the parts in `weights`.
  bool has_whole_weights = false;
  ConstSpan whole_weights = {};
  // Of tables on servers that have all parameters: the arrays that rank 0 then sends (RowStart::arrays).
  int row_arrays = 0;
  ConstSpan residual = {};  // rounding errors of this rank's gradients (ErrorFeedback); empty: zero
};

struct StepInfo {
  int64_t step = 0;                   // from 0
  int64_t samples = 0;                // in this rank's gradient
  int64_t machine_samples = 0;        // in those of its machine's ranks; without --local_aggregation, itself
  int64_t global_samples = 0;         // in all ranks' gradients of this step
  int64_t global_samples_before = 0;  // in all earlier steps; determines the learning rate
  // The step repeats a recording (see StepRecording): nothing is called between BeginStep and FinishStep, and
  // the recorded work is enqueued again.
  bool is_repeated = false;
  // The update's number, from 0, in a training whose steps have several; -1: that of the step.
  int64_t update = -1;
};

// What a strategy reports about a finished step.
struct StepReport {
  std::vector<BucketRecord> buckets;
  Traffic traffic;         // of this step
  int64_t exposed_ns = 0;  // BeginStep and FinishStep waited this long for communication
  // Of UnitMemory: when weights were gathered, and gradients reduced before the last time; and when the
  // compute stream waited for that in forward and backward, which is not in exposed_ns.
  std::vector<std::pair<int64_t, int64_t>> transfers = {}, waits = {};
  std::pair<int64_t, int64_t> rows = {};  // begin and end of the exchange of rows of tables; equal: none
  // Parameter servers: number of updates in the first bucket's weights, counting all workers' updates.
  int64_t version = -1;
  // The gradient came too late and was discarded. Training continues with `next_step` on the weights that
  // came back.
  bool dropped = false;
  int64_t next_step = -1;  // set if dropped, or if a parameter server restarted from a checkpoint
};

// Called by one thread. Per step: BeginStep, forward, backward with GradientReady, FinishStep. What only some
// strategies offer is in capabilities.h.
class SyncStrategy {
 public:
  virtual ~SyncStrategy() = default;

  // On return every rank has rank 0's weights and optimizer state. Returns the step to begin with:
  // `state.step`, or a later one if a parameter server has already continued the job.
  virtual absl::StatusOr<int64_t> Start(const TrainingState& state) = 0;

  // On return the weights that this step may read are in place, in the compute stream's order.
  virtual absl::Status BeginStep(const StepInfo& info) = 0;

  // The gradients of `buckets` are complete at `ready`. Returns at once; the order of buckets is the same on
  // every rank. No later work of this step reads the buckets' weights or writes their gradients, so the
  // strategy may update them during backward. With UnitMemory once for each micro-batch, of which that holds
  // after the last; a bucket that is kept whole (ShardPlan) once.
  virtual void GradientReady(absl::Span<const Bucket> buckets, Event ready) = 0;

  // Waits for the work that the step started. On return gradients may be overwritten, in stream order.
  virtual absl::StatusOr<StepReport> FinishStep() = 0;

  // For a checkpoint, on rank 0 between two steps: current weights and optimizer slots. From a parameter
  // server they are read bucket by bucket; asynchronous workers must pause meanwhile. False: the server
  // restarted from an earlier step meanwhile, and the values are of that step.
  virtual absl::StatusOr<bool> Save(Span weights, const std::vector<Span>& slots) = 0;

  // By every rank, after its last step: the weights to evaluate. Synchronous: this rank's. Asynchronous: the
  // server's, with the pushes of all workers that have finished.
  virtual absl::Status Collect(Span weights) = 0;

  // Of the optimizer's state on this rank, in its device's memory.
  virtual size_t state_bytes() const { return 0; }

  // From any thread: all waiting and later calls return `why`.
  virtual void Abort(absl::Status why) = 0;
};

}  // namespace psring
