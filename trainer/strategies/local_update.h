// A rank's update of its own weights.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/device/host_view.h"
#include "common/ops/ops.h"
#include "common/ops/optimizer.h"
#include "trainer/strategies/strategies.h"

namespace psring {

// The optimizer over this rank's weights and gradient, which it clips by its norm over all parameters. One
// thread, except that ranges may be applied by different streams.
class LocalUpdate {
 public:
  static absl::StatusOr<LocalUpdate> Create(const StrategyContext& context);

  void Start(const TrainingState& state) { state_ = state; }
  const TrainingState& state() const { return state_; }
  const Optimizer& optimizer() const { return optimizer_; }

  // `samples`: in the gradient of this step.
  void BeginStep(const StepInfo& info, int64_t samples);

  // Whether the norm is needed, and so all buckets before the first update. Per step: BeginNorm, AddToNorm
  // for each bucket, EndNorm. Without clipping they do nothing.
  bool clips() const { return clip_norm_ > 0; }
  void BeginNorm(Stream& stream) const;
  void AddToNorm(const Bucket& bucket, Ops& ops, Stream& stream) const;
  void EndNorm(Stream& stream) const;
  // The factor of the mean gradient, after the stream of EndNorm was synchronized.
  absl::StatusOr<double> ClippingFactor() const;

  // Updates the weights of `bucket` from its gradient, the mean of which is multiplied by `factor`.
  void Apply(const Bucket& bucket, Ops& ops, Stream& stream, double factor = 1) const;

  // Whether the update is the same work in every step with as many samples, so that a recording may contain
  // it. Adam depends on the step's number, a schedule on the samples so far, clipping on the gradient.
  bool repeats() const { return repeats_; }

  // Copies of weights and slots. Return when they are complete.
  absl::Status CopyWeights(Span to, Stream& stream) const;
  absl::Status Save(Span weights, const std::vector<Span>& slots, Stream& stream) const;

 private:
  LocalUpdate(const UpdateRule& rule, Optimizer optimizer);
  Span GradientOf(const Bucket& bucket) const {
    return state_.gradient.device.Slice(bucket.first, bucket.count);
  }

  LrSchedule schedule_;
  double clip_norm_;
  bool repeats_;
  Optimizer optimizer_;
  DeviceValue<double> sum_of_squares_;
  TrainingState state_;
  int64_t step_ = 0, samples_ = 0;
  double rate_ = 0;
};

}  // namespace psring
