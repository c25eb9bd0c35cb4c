// What some strategies offer beyond SyncStrategy. The caller has a fallback for each capability.
#pragma once

#include <cstdint>
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

// A strategy with its capabilities; null: it does not have them.
struct Strategy {
  std::unique_ptr<SyncStrategy> sync;
  StepRecording* recording = nullptr;
  StrategyBarrier* barrier = nullptr;
  Residuals* residuals = nullptr;
  ShardedState* sharded = nullptr;
};

}  // namespace psring
