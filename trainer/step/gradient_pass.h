// The gradient of one step: forward and backward over the step's batches.
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
#include "trainer/step/compute_delay.h"
#include "trainer/strategies/capabilities.h"
#include "trainer/strategies/sync_strategy.h"

namespace psring {

// Passes buckets to the strategy in order, each as soon as backward has finished all of its layers and the
// buckets before it, with an event of the compute stream. Their communication then overlaps with the backward
// pass of earlier layers. Used by the training thread.
class BucketPipeline {
 public:
  // `buckets` cover the gradient; they may change between two steps. All are borrowed.
  BucketPipeline(const std::vector<Bucket>& buckets, Stream& compute, SyncStrategy& strategy)
      : buckets_(buckets), compute_(compute), strategy_(strategy) {}

  void BeginStep();

  // These elements of the gradient are complete at this point of the compute stream. Once per step and
  // element.
  void Ready(ReadyRange range);

  bool all_ready() const { return next_ == buckets_.size(); }
  // The ranges of this step, in the order of Ready.
  const std::vector<ReadyRange>& order() const { return order_; }

 private:
  const std::vector<Bucket>& buckets_;
  Stream& compute_;
  SyncStrategy& strategy_;
  std::vector<size_t> missing_;  // elements, by bucket
  size_t next_ = 0;              // the first that was not passed on
  std::vector<ReadyRange> order_;
};

// Work that is enqueued in the same way every time (a forward or backward pass, or both with the strategy's
// work on the gradients), as CUDA graphs. The first run only enqueues, so that ops choose algorithms and
// allocate memory. The second run records, and later runs repeat the recording. A call of `cut` ends one
// recorded piece and begins the next: a backward pass is cut where gradients become ready, so that the
// resulting work (events, stamps, other streams) is between the pieces and not in them. Used by one thread.
class RecordedPass {
 public:
  using Ready = std::function<void(ReadyRange range)>;
  using Enqueue = std::function<absl::Status(const Ready& cut)>;

  // Whether the next run repeats the recording, without calling `enqueue`.
  bool repeats() const { return runs_ > 1; }

  // `enqueue` puts the pass on `stream`, always the same compute stream of a GPU, and calls its argument
  // where a range is ready. For each such call `ready` is called, in stream order, outside recordings.
  absl::Status Run(Stream& stream, const Enqueue& enqueue, const Ready& ready);

 private:
  struct Piece {
    std::unique_ptr<RecordedWork> work;  // null: nothing before the cut
    std::optional<ReadyRange> ready;     // after it; none after the last piece
  };

  absl::Status Record(Stream& stream, const Enqueue& enqueue, const Ready& ready);

  int runs_ = 0;
  std::vector<Piece> pieces_;
};

// Used by the training thread.
class GradientPass {
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
    const std::vector<Bucket>& buckets;  // may change between two steps
    Span weights;
    Span gradient;
    Span buffers;
    SharedStatistics* statistics;  // null: each rank normalizes its own batch
    TouchedRows* rows;             // of the step, planned for its batches; null: the model has no tables
  };
  static absl::StatusOr<std::unique_ptr<GradientPass>> Create(const TrainingOptions& options,
                                                              const Parts& parts);

  // Whether a step of `batches` batches and `global_samples` samples repeats a recording.
  bool Repeats(size_t batches, int64_t global_samples) const;

  // Enqueues, between the strategy's BeginStep and FinishStep: the sum of the gradients of the batches of
  // `drawn`, samples of `data`. Each bucket goes to the strategy when its gradient is complete. `delay_step`
  // selects the step's random delay (--jitter_ms).
  absl::Status Compute(const Dataset& data, const SampledStep& drawn, const StepInfo& info,
                       int64_t delay_step);

  // Of each batch of the last step, after the compute stream was synchronized.
  struct Stamps {
    int64_t forward_ns = 0, backward_ns = 0, end_ns = 0;
  };
  const std::vector<Stamps>& stamps() const { return stamps_; }
  // The order in which the last step's gradients became ready.
  const std::vector<ReadyRange>& order() const { return pipeline_.order(); }

 private:
  GradientPass(const TrainingOptions& options, const Parts& parts)
      : options_(options), parts_(parts), pipeline_(parts.buckets, parts.compute, *parts.strategy.sync) {}

  // A recording: of a step's batch by its index and the step's global samples, which determine the samples of
  // each rank's batch; else of a pass by the samples of its batch, of backward also by the batch's index,
  // which determines where its gradient goes.
  enum class Part : uint8_t { kStep, kForward, kBackward };
  using Key = std::tuple<Part, size_t, int64_t>;

  absl::Status Run(bool records, const Key& key, const RecordedPass::Enqueue& enqueue,
                   const RecordedPass::Ready& ready);
  absl::Status ForwardAndBackward(size_t batch_of_step, const Batch& batch, int64_t delay_step);
  // Micro-batches stand for workers, of which the first is rank 0: only its buffers are updated.
  ModelState StateOf(size_t batch_of_step) const;
  absl::Status Backward(size_t batch_of_step, const Batch& batch, bool records);
  bool records_steps() const { return parts_.strategy.recording != nullptr; }

  const TrainingOptions& options_;
  const Parts parts_;
  BucketPipeline pipeline_;
  Buffer worker_gradient_;              // of one of the workers that micro-batches represent
  Buffer micro_gradient_;               // of one of several accumulated batches
  std::map<Key, RecordedPass> passes_;  // with --cuda_graph: of steps if the strategy records them
  std::vector<uint64_t> sample_seeds_;  // of the batch in flight; empty without --dropout
  std::vector<Stamps> stamps_;          // written by the compute stream; each batch's at a fixed address
};

}  // namespace psring
