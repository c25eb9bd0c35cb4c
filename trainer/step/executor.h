// Executes a training step: the program single_stage (trainer/programs), lowered with the units of the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/parameters.h"
#include "common/cuda/recorded_work.h"
#include "common/device/device.h"
#include "common/options/training_options.h"
#include "trainer/data/dataset.h"
#include "trainer/data/sampler.h"
#include "trainer/models/batch_memory.h"
#include "trainer/models/model.h"
#include "trainer/pipeline/unit_passes.h"
#include "trainer/programs/walk_program.h"
#include "trainer/step/compute_delay.h"
#include "trainer/strategies/capabilities.h"
#include "trainer/strategies/sync_strategy.h"

namespace psring {

// Work that is enqueued in the same way every time (a forward or backward pass, or both with the strategy's
// work on the gradients), as CUDA graphs. The first run only enqueues, so that ops choose algorithms and
// allocate memory. The second run records, and later runs repeat the recording. A call of `cut` ends one
// recorded piece and begins the next: a backward pass is cut where buckets are complete, so that the
// resulting work (events, stamps, other streams) is between the pieces and not in them. Used by one thread.
class RecordedPass {
 public:
  using Cut = std::function<void(int unit)>;
  using Enqueue = std::function<absl::Status(const Cut& cut)>;

  // Whether the next run repeats the recording, without calling `enqueue`.
  bool repeats() const { return runs_ > 1; }

  // `enqueue` puts the pass on `stream`, always the same compute stream of a GPU, and calls its argument
  // where a unit's buckets are complete. For each such call `ready` is called, in stream order, outside
  // recordings.
  absl::Status Run(Stream& stream, const Enqueue& enqueue, const Cut& ready);

 private:
  struct Piece {
    std::unique_ptr<RecordedWork> work;  // null: nothing before the cut
    std::optional<int> unit;             // whose buckets are ready after it; none after the last piece
  };

  absl::Status Record(Stream& stream, const Enqueue& enqueue, const Cut& ready);

  int runs_ = 0;
  std::vector<Piece> pieces_;
};

// Used by the training thread.
class Executor {
 public:
  // Borrowed.
  struct Parts {
    Device& device;
    Stream& compute;
    Ops& ops;
    Model& model;
    Activations& activations;
    BatchMemory& batches;
    ComputeDelay& delay;
    const Strategy& strategy;
    const std::vector<Bucket>& buckets;  // cover the gradient
    Span weights;
    Span gradient;
    Span buffers;
    SharedStatistics* statistics;  // null: each rank normalizes its own batch
    TouchedRows* rows;             // of the step, planned for its batches; null: the model has no tables
  };
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const TrainingOptions& options, const Parts& parts);

  // Whether a step of `global_samples` samples repeats a recording.
  bool Repeats(int64_t global_samples) const;

  // Enqueues, between the strategy's BeginStep and FinishStep: the sum of the gradients of the batches of
  // `drawn`, samples of `data`. Each bucket goes to the strategy, which sums and updates it, when its
  // gradient is complete. `delay_step` selects the step's random delay (--jitter_ms).
  absl::Status Run(const Dataset& data, const SampledStep& drawn, const StepInfo& info, int64_t delay_step);

  // The last step's actions and when they ran, after the compute stream was synchronized. Of each batch: the
  // begin of its first forward and backward action, and the end of its last one. Of all computations: in the
  // first 100 steps without --cuda_graph. Other times are 0.
  const std::vector<StepNode>& nodes() const { return nodes_; }
  const std::vector<NodeTime>& times() const { return times_; }

  // With a strategy whose weights are sharded, by all ranks: forward passes over `data`, with weights that
  // are gathered unit by unit; only a rank that `computes` has the score.
  absl::StatusOr<BatchScore> Evaluate(const Dataset& data, int batch, bool computes,
                                      const std::function<void(int64_t predictions)>& on_batch);

  // That a step gathers; of buckets with `once`, at most once.
  int64_t GatheredElements(const std::vector<bool>& once) const;

  // Of gradients beside Parts::gradient.
  size_t gradient_bytes() const { return worker_gradient_.bytes() + micro_gradient_.bytes(); }

  // The times of each batch of the last step.
  struct BatchTimes {
    int64_t forward_ns, backward_ns, end_ns;
  };
  size_t batches() const { return batches_.size(); }
  BatchTimes TimesOf(size_t batch) const;

 private:
  Executor(const TrainingOptions& options, const Parts& parts);

  // The nodes of a batch: from one index to the next.
  struct BatchNodes {
    size_t forward = 0, backward = 0, end = 0;
  };
  // A recording: of a step's batch by its index and the step's global samples, which determine the samples of
  // each rank's batch; else of a pass by the samples of its batch, of backward also by the batch's index,
  // which determines where its gradient goes.
  enum class Part : uint8_t { kStep, kForward, kBackward };
  using Key = std::tuple<Part, size_t, int64_t>;

  absl::Status PlanNodes();
  absl::Status RunBatch(size_t batch, int64_t delay_step);
  absl::Status RunPass(const Key& key, size_t first, size_t end);
  absl::Status Enqueue(size_t first, size_t end, const RecordedPass::Cut& cut);
  absl::Status Compute(const StepAction& action);
  absl::Status Forward(size_t batch, size_t unit);
  absl::Status Backward(size_t batch, size_t unit);
  absl::Status UnshardAhead(size_t node);
  // Micro-batches stand for workers, of which the first is rank 0: only its buffers are updated.
  ModelState StateOf(size_t batch) const;
  void Reduce(int unit);
  bool records_steps() const { return parts_.strategy.recording != nullptr; }
  size_t batches_of_worker() const { return static_cast<size_t>(options_.micro_batches); }

  const TrainingOptions& options_;
  const Parts parts_;
  UnitPasses passes_;
  std::vector<StepNode> nodes_;
  std::vector<NodeTime> times_;  // written by the compute stream; each at a fixed address
  std::vector<BatchNodes> batches_;
  Buffer worker_gradient_;                  // of one of the workers that micro-batches represent
  Buffer micro_gradient_;                   // of one of several accumulated batches
  std::map<Key, RecordedPass> recordings_;  // with --cuda_graph: of steps if the strategy records them
  // Of the batch in flight.
  Batch batch_;
  std::vector<uint64_t> sample_seeds_;  // empty without --dropout
  // If weights are gathered, of this step: when computations and releases were done, by node; the first node
  // that may be a gathering which is not enqueued.
  std::vector<Event> done_;
  size_t next_gathering_ = 0;
  int steps_in_full_ = 100;  // still to come: all of their computations are timed
};

}  // namespace psring
