// What some strategies offer beyond SyncStrategy. The caller has a fallback for each capability.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "trainer/strategies/sync_strategy.h"

namespace psring {

// With --cuda_graph: all GPU work between BeginStep and FinishStep, together with forward and backward, may
// be recorded once and repeated in steps with as many samples. Without it each pass is recorded separately.
class StepRecording {
 public:
  // After the last GradientReady, within the recording: joins the strategy's streams to the compute stream.
  virtual void FinishBackward() = 0;

 protected:
  ~StepRecording() = default;
};

enum class BarrierPoint { kFirstStep = 0, kFirstMeasuredStep = 1, kEnd = 2 };

// The strategy's own barrier. Without it ranks wait for each other through the rendezvous.
class StrategyBarrier {
 public:
  // Waits for all ranks. Returns the step to continue with if a server restarted from an earlier one.
  virtual absl::StatusOr<std::optional<int64_t>> Await(BarrierPoint point) = 0;

 protected:
  ~StrategyBarrier() = default;
};

// Gradients are sent in 16 bits and rounding errors are kept (ErrorFeedback).
class Residuals {
 public:
  // This rank's rounding errors at the beginning of `step`; see ErrorFeedback::Before. With no work in
  // progress; also after an error.
  virtual ConstSpan ResidualBefore(int64_t step) const = 0;

 protected:
  ~Residuals() = default;
};

// Each rank has only a part of the optimizer's state, so that all ranks make a checkpoint together.
class ShardedState {
 public:
  // By every rank except 0, between two steps, while rank 0 is in SyncStrategy::Save: sends this rank's part.
  virtual absl::Status SendState() = 0;
  // By every rank after the same step: what rank 0 gives for `stops`.
  virtual absl::StatusOr<bool> Rank0Stops(bool stops) = 0;

 protected:
  ~ShardedState() = default;
};

// Of the gradient, and with FSDP of the weights, a rank has shards only; a bucket, which is that of a unit,
// is complete while the unit is computed. Buckets are gathered and reduced on one stream, the lane. All ranks
// make the calls that enqueue on it in the same order.
class UnitMemory {
 public:
  using TakeBucket = std::function<void(const Bucket& bucket, const float* values)>;

  virtual bool shards_weights() const = 0;

  // Of sharded weights: gathers a bucket on the lane, after `free`, the end of the computation before the
  // last one that is enqueued, or of the last one that uses its block. Two such buckets are complete at a
  // time; those with a block of their own are gathered once per step and stay.
  virtual absl::Status Unshard(int bucket, const Event& free) = 0;
  // Where they are; later work on the compute stream waits for them. Both also outside of steps.
  virtual Span UseWeights(int bucket) = 0;
  // Outside of steps, with no work in progress: the shards have changed.
  virtual void ForgetWeights() = 0;

  // Where backward writes a bucket's gradient of a micro-batch, or if it is kept whole (ShardPlan) of all of
  // them, until it is given to GradientReady: zeros, for later work on the compute stream.
  virtual Span BeginGradient(int bucket) = 0;

  // Of sharded weights, with no work in progress: gives every bucket to `read`, on the host, in increasing
  // order of elements.
  virtual absl::Status ReadWeights(const TakeBucket& read) = 0;

 protected:
  ~UnitMemory() = default;
};

// A strategy with its capabilities; null: it does not have them.
struct Strategy {
  std::unique_ptr<SyncStrategy> sync;
  StepRecording* recording = nullptr;
  StrategyBarrier* barrier = nullptr;
  Residuals* residuals = nullptr;
  ShardedState* sharded = nullptr;
  UnitMemory* units = nullptr;
};

}  // namespace psring
