// How gradients become updated weights: the one door through which every way of synchronising is plugged in.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/device/host_view.h"
#include "common/measure/records.h"
#include "common/measure/trace.h"
#include "common/ops/optimizer.h"

namespace psring {

class Ops;
class ProcessGroup;
class PsClient;

// Two flat buffers that outlive the strategy, on the device and as the host sees them, and where training
// begins. Where the two sides differ, the strategy copies between them if what it talks to knows only the
// host's.
struct TrainingState {
  HostView weights;
  HostView gradient;
  int weights_fd = -1;  // the files behind the host's, where other processes may map them; else -1
  int gradient_fd = -1;
  // Handles of the GPU's, for other processes of this host (cuda_sharing.h); else empty.
  std::string weights_on_gpu = {}, gradient_on_gpu = {};
  int64_t step = 0;     // the first to make: above 0 where a checkpoint is gone on from
  int64_t samples = 0;  // in the updates before it
  int beyond = 0;       // asynchronous: of these, those beyond `step` of each worker
  // The optimizer's state at that step, where there is any: rank 0's counts, and with no communication each
  // rank's own. Only until Start has returned.
  bool has_slots = false;  // on every rank alike
  std::vector<ConstSpan> slots = {};
  ConstSpan residual = {};  // what rounding had left of this rank's gradients; empty: nothing
};

struct StepInfo {
  int64_t step = 0;                   // from 0
  int64_t samples = 0;                // in this rank's gradient
  int64_t global_samples = 0;         // in all ranks' gradients of this step
  int64_t global_samples_before = 0;  // of all steps before: the learning rate's clock
  // A recording of an earlier step is repeated (see records_steps): between BeginStep and FinishStep nothing
  // is called, and what was enqueued there is done again.
  bool is_repeated = false;
};

// What a strategy says of a step when it is finished.
struct StepReport {
  std::vector<BucketRecord> buckets;
  Traffic traffic;         // of this step
  int64_t exposed_ns = 0;  // BeginStep and FinishStep stood still until communication was done
  // Parameter servers: updates in the first bucket's weights as they came back, those of all workers.
  int64_t version = -1;
  // The gradient came too late and is in no update; the weights are those that `next_step` builds on.
  bool dropped = false;
  int64_t next_step = -1;  // where `dropped`, or where a parameter server went back; else the next
};

// Per step, from one thread: BeginStep, forward, backward { GradientReady ... }, FinishStep.
class SyncStrategy {
 public:
  virtual ~SyncStrategy() = default;

  // Every rank leaves with rank 0's weights, and the optimizer with rank 0's slots.
  virtual absl::Status Start(const TrainingState& state) = 0;

  // On return the weights this step may read are in place, in the compute stream's order.
  virtual absl::Status BeginStep(const StepInfo& info) = 0;

  // Returns at once; same bucket order on every rank. Called when no later work of this step reads the
  // bucket's weights or writes its gradient, so the bucket may be updated while backward goes on. `ready`:
  // its gradient is complete.
  virtual void GradientReady(const Bucket& bucket, Event ready) = 0;

  // The same for buckets that one event makes ready, in their order.
  virtual void GradientsReady(absl::Span<const Bucket> buckets, Event ready) {
    for (const Bucket& bucket : buckets) GradientReady(bucket, ready);
  }

  // Behind the last bucket, when all of the step's backward pass has been enqueued.
  virtual void FinishBackward() {}

  // With --cuda_graph: whether all that is enqueued between BeginStep and FinishStep may be recorded,
  // together with forward and backward, and repeated in steps of as many samples: it is the same each time,
  // it is work of a GPU on the compute stream and on streams that it waits for, and stamps go to where they
  // went before.
  virtual bool records_steps() const { return false; }

  // On return gradients may be overwritten, in stream order. Waits for what the step has started.
  virtual absl::StatusOr<StepReport> FinishStep() = 0;

  // After a first step, by every rank: the order in which tensors became ready (by index) becomes rank 0's.
  // False where buckets are not to be planned anew: where nobody else waits for them, or where they are a
  // server's and were planned in that order from the beginning.
  virtual absl::StatusOr<bool> AgreeOnOrder(std::vector<int>& ready) {
    (void)ready;
    return false;
  }
  // Between two steps, after AgreeOnOrder: what GradientReady will be called with from now on.
  virtual void Rebuild(std::vector<Bucket> buckets) { (void)buckets; }

  // The step to begin with, after Start, where a parameter server goes on with a job; else 0.
  virtual int64_t start_step() const { return 0; }

  // Waits for all ranks: `stage` 0 before the first step, 1 before the first measured one, 2 after the last.
  // Nothing where the strategy has no barrier of its own; else the step to go on with, if that is an earlier
  // one.
  struct Stage {
    std::optional<int64_t> goes_back_to;
  };
  virtual absl::StatusOr<std::optional<Stage>> AwaitStage(int stage) {
    (void)stage;
    return std::nullopt;
  }

  // Drained: the weights to evaluate. Every rank calls it, after the last step. Synchronous modes: this
  // rank's weights; asynchronous: the server's, after every worker's last push.
  virtual absl::Status Collect(Span weights) = 0;

  // For a checkpoint, between two steps, on rank 0: weights and the optimizer's slots as they are. Parameter
  // servers: the server's; where each push is an update, other workers' go on meanwhile, bucket by bucket.
  // False: the server has gone back to an earlier step meanwhile, and these are of that.
  virtual absl::StatusOr<bool> Save(Span weights, const std::vector<Span>& slots) = 0;

  // What rounding to 16 bits has left of this rank's gradients when `step` begins, as ErrorFeedback::Before;
  // empty where gradients are not rounded. With nothing under way; also after an error.
  virtual ConstSpan ResidualBefore(int64_t step) const {
    (void)step;
    return {};
  }

  // From any thread: whatever waits returns `why`.
  virtual void Abort(absl::Status why) = 0;
};

// What a strategy is made from. Borrowed; all outlive it.
struct StrategyContext {
  std::string algorithm;  // of the process group, or the server's consistency
  int rank = 0;
  int world_size = 1;
  Device& device;
  Ops& ops;         // the compute thread's
  Stream& compute;  // the stream of forward and backward
  std::vector<Bucket> buckets;
  OptimizerConfig optimizer;
  LrSchedule schedule;
  Trace& trace;
  absl::Duration timeout = absl::Seconds(60);
  int threads = 1;
  ProcessGroup* group = nullptr;  // strategies that need one
  PsClient* client = nullptr;     // parameter servers
  bool deterministic = false;     // parameter servers
  bool serial = false;            // parameter servers
  double clip_norm = 0;           // synchronous: of the mean gradient over all parameters; 0: not clipped
  bool staleness_lr = false;      // asynchronous parameter servers: the rate is divided by the staleness
  DType wire = DType::kFloat32;   // of gradients on their way
  bool cuda_graph = false;        // work on `compute` may be recorded
  bool shares_process = false;    // other ranks are threads of this process
  // Parameter servers that come back after a death: so many steps apart they keep what they go back to; 0:
  // they do not come back.
  int64_t kept_every = 0;
  std::function<void(const std::string& note)> on_note = [](const std::string&) {};
};

// The number in "ps-ssp:2": what it stands for. No letter: the strategy takes none.
struct StrategyNumber {
  const char* letter = "";
  const char* meaning = "";
  int least = 0;
  bool below_workers = false;
};

enum class Needs { kNothing, kProcessGroup, kParameterServer };

struct StrategyRow {
  const char* name;
  const char* summary;
  Needs needs;
  const char* backend = "";  // whose collectives or server: "native", "gloo", "mpi", "nccl"; "": nobody's
  const char* algorithm;     // of the process group, or the server's consistency, without its number
  bool synchronous;          // all ranks hold equal weights after every step
  bool single_process;       // refuses a world size above 1
  double default_momentum;
  absl::StatusOr<std::unique_ptr<SyncStrategy>> (*make)(const StrategyContext& context);
  StrategyNumber number = {};
  bool replicates = false;  // one process with a replica of the model on each of several devices

  bool has_number() const { return *number.letter != 0; }
};
const std::vector<StrategyRow>& Strategies();

// The row of a name as users give it: "ring", "ps-ssp:2". NotFound names the nearest, and all there are;
// InvalidArgument: a number that is missing, too small, or not asked for.
absl::StatusOr<const StrategyRow*> FindStrategy(const std::string& name);
// The number in such a name; 0 where there is none. `name` has a row.
int NumberOf(const std::string& name);
// The row's algorithm with the name's number: "sync", "ssp:2".
std::string AlgorithmOf(const StrategyRow& row, const std::string& name);

}  // namespace psring
