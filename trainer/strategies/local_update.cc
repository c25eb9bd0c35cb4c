#include "trainer/strategies/local_update.h"

#include <utility>

#include "common/base/check.h"
#include "common/ops/gradient_norm.h"

namespace psring {

absl::StatusOr<LocalUpdate> LocalUpdate::Create(const StrategyContext& context,
                                                const std::vector<ParameterRange>& own) {
  OptimizerConfig config = context.update.optimizer;
  size_t count = 0;
  if (own.empty()) {
    for (const Bucket& bucket : context.buckets) count += bucket.count;
  } else {
    for (const ParameterRange& range : own) count += range.count;
    config.no_decay = RangesWithin(own, config.no_decay);
  }
  PSRING_ASSIGN_OR_RETURN(Optimizer optimizer, Optimizer::Create(config, context.device, count));
  LocalUpdate update(context.update, std::move(optimizer));
  PSRING_ASSIGN_OR_RETURN(update.sum_of_squares_, DeviceValue<double>::Create(context.device));
  return update;
}

LocalUpdate::LocalUpdate(const UpdateRule& rule, Optimizer optimizer)
    : schedule_(rule.schedule),
      clip_norm_(rule.clip_norm),
      repeats_(rule.optimizer.kind != OptimizerKind::kAdam && rule.optimizer.kind != OptimizerKind::kAdamW &&
               schedule_.decay == LrDecay::kConstant && schedule_.warmup_samples == 0 && rule.clip_norm == 0),
      optimizer_(std::move(optimizer)) {}

void LocalUpdate::BeginStep(const StepInfo& info, int64_t samples) {
  step_ = info.step;
  samples_ = samples;
  rate_ = LearningRate(schedule_, info.global_samples_before);
}

void LocalUpdate::BeginNorm(Stream& stream) const {
  if (clips()) sum_of_squares_.Zero(stream);
}

void LocalUpdate::AddToNorm(const Bucket& bucket, Ops& ops, Stream& stream) const {
  if (clips()) ops.AddSquares(GradientOf(bucket), sum_of_squares_.on_device(), stream);
}

void LocalUpdate::EndNorm(Stream& stream) const {
  if (clips()) sum_of_squares_.Download(stream);
}

absl::StatusOr<double> LocalUpdate::ClippingFactor(double sum_of_squares) const {
  return clips() ? ClipFactor(clip_norm_, sum_of_squares, samples_) : 1.0;
}

void LocalUpdate::ApplyAt(size_t state, const Bucket& bucket, Ops& ops, Stream& stream, double factor) const {
  optimizer_.Apply(state, state_.weights.device.Slice(bucket.first, bucket.count), GradientOf(bucket),
                   samples_, rate_, step_ + 1, ops, stream, factor);
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
