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
  // `own`: the elements that this rank updates; the optimizer has state for these only, one range after the
  // other. Empty: all, and an element's state is at its place in the flat buffers.
  static absl::StatusOr<LocalUpdate> Create(const StrategyContext& context,
                                            const std::vector<ParameterRange>& own = {});

  void Start(const TrainingState& state) { state_ = state; }
  const TrainingState& state() const { return state_; }
  const Optimizer& optimizer() const { return optimizer_; }

  // `samples`: in the gradient of this step.
  void BeginStep(const StepInfo& info, int64_t samples);

  // Whether the norm is needed, and so all buckets before the first update. Per step: BeginNorm, AddToNorm
  // for each bucket, EndNorm. Without clipping they do nothing.
  bool clips() const { return rule_.clip_norm > 0; }
  void BeginNorm(Stream& stream) const;
  void AddToNorm(const Bucket& bucket, Ops& ops, Stream& stream) const {
    AddToNorm(bucket, GradientOf(bucket), ops, stream);
  }
  // `gradient`: of `bucket`, if it is not in its place in TrainingState::gradient.
  void AddToNorm(const Bucket& bucket, ConstSpan gradient, Ops& ops, Stream& stream) const;
  void EndNorm(Stream& stream) const;
  // Both after the stream of EndNorm was synchronized, if clips(): of what was added, and the factor of the
  // mean gradient for that of the whole gradient; with a pipeline it adds those of the other stages' ranks.
  double sum_of_squares() const { return sum_of_squares_.on_host(); }
  absl::StatusOr<double> ClippingFactor(double sum_of_squares) const;

  // Updates the weights of `bucket` from its gradient, the mean of which is multiplied by `factor`.
  void Apply(const Bucket& bucket, Ops& ops, Stream& stream, double factor = 1) const {
    ApplyTo(bucket.first, state_.weights.device.Slice(bucket.first, bucket.count), GradientOf(bucket), ops,
            stream, factor);
  }
  // The same of `weights` and `gradient`. `state`: the place of their first element in the optimizer's state.
  void ApplyTo(size_t state, Span weights, ConstSpan gradient, Ops& ops, Stream& stream, double factor) const;

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

  UpdateRule rule_;
  bool repeats_;
  Optimizer optimizer_;
  DeviceValue<double> sum_of_squares_;
  TrainingState state_;
  int64_t update_ = 0, samples_ = 0;
  double rate_ = 0;
};

}  // namespace psring
