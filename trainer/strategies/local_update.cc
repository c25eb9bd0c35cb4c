#include "trainer/strategies/local_update.h"

#include <utility>

#include "common/base/check.h"

namespace psring {

absl::StatusOr<LocalUpdate> LocalUpdate::Create(const StrategyContext& context) {
  size_t count = 0;
  for (const Bucket& bucket : context.buckets) count += bucket.count;
  PSRING_ASSIGN_OR_RETURN(Optimizer optimizer,
                          Optimizer::Create(context.update.optimizer, context.device, count));
  return LocalUpdate(context.update, std::move(optimizer));
}

LocalUpdate::LocalUpdate(const UpdateRule& rule, Optimizer optimizer)
    : schedule_(rule.schedule),
      repeats_(rule.optimizer.kind != OptimizerKind::kAdam && rule.optimizer.kind != OptimizerKind::kAdamW &&
               schedule_.decay == LrDecay::kConstant && schedule_.warmup_samples == 0 && rule.clip_norm == 0),
      optimizer_(std::move(optimizer)) {}

void LocalUpdate::BeginStep(const StepInfo& info, int64_t samples) {
  step_ = info.step;
  samples_ = samples;
  rate_ = LearningRate(schedule_, info.global_samples_before);
}

void LocalUpdate::Apply(const Bucket& bucket, double factor, Ops& ops, Stream& stream) const {
  optimizer_.Apply(bucket.first, state_.weights.device.Slice(bucket.first, bucket.count),
                   state_.gradient.device.Slice(bucket.first, bucket.count), samples_, rate_, step_ + 1, ops,
                   stream, factor);
}

absl::Status LocalUpdate::CopyWeights(Span to, Stream& stream) const {
  if (to.data == state_.weights.device.data) return absl::OkStatus();
  stream.Copy(to.data, state_.weights.device.data, to.bytes());
  return stream.Synchronize();
}

absl::Status LocalUpdate::Save(Span weights, const std::vector<Span>& slots, Stream& stream) const {
  stream.Copy(weights.data, state_.weights.device.data, weights.bytes());
  optimizer_.Save(slots, stream);
  return stream.Synchronize();
}

}  // namespace psring
