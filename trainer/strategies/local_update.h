// A rank's update of its own weights.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/ops/ops.h"
#include "common/ops/optimizer.h"
#include "trainer/strategies/strategies.h"

namespace psring {

// The optimizer over this rank's weights and gradient. One thread, except that ranges may be applied by
// different streams.
class LocalUpdate {
 public:
  static absl::StatusOr<LocalUpdate> Create(const StrategyContext& context);

  void Start(const TrainingState& state) { state_ = state; }
  const TrainingState& state() const { return state_; }
  const Optimizer& optimizer() const { return optimizer_; }

  // `samples`: in the gradient of this step.
  void BeginStep(const StepInfo& info, int64_t samples);

  // Updates the weights of `bucket` from its gradient, the mean of which is multiplied by `factor`.
  void Apply(const Bucket& bucket, double factor, Ops& ops, Stream& stream) const;

  // Whether the update is the same work in every step with as many samples, so that a recording may contain
  // it. Adam depends on the step's number, a schedule on the samples so far, clipping on the gradient.
  bool repeats() const { return repeats_; }

  // Copies of weights and slots. Return when they are complete.
  absl::Status CopyWeights(Span to, Stream& stream) const;
  absl::Status Save(Span weights, const std::vector<Span>& slots, Stream& stream) const;

 private:
  LocalUpdate(const UpdateRule& rule, Optimizer optimizer);

  LrSchedule schedule_;
  bool repeats_;
  Optimizer optimizer_;
  TrainingState state_;
  int64_t step_ = 0, samples_ = 0;
  double rate_ = 0;
};

}  // namespace psring
