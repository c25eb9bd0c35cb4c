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
    : rule_(rule),
      repeats_(rule.optimizer.kind != OptimizerKind::kAdam && rule.optimizer.kind != OptimizerKind::kAdamW &&
               rule.schedule.decay == LrDecay::kConstant && rule.schedule.warmup_samples == 0 &&
               rule.clip_norm == 0),
      optimizer_(std::move(optimizer)) {}

void LocalUpdate::BeginStep(const StepInfo& info, int64_t samples) {
  update_ = info.update >= 0 ? info.update : info.step;
  samples_ = samples;
  rate_ = LearningRate(rule_.schedule, info.global_samples_before);
}

void LocalUpdate::BeginNorm(Stream& stream) const {
  if (clips()) sum_of_squares_.Zero(stream);
}

void LocalUpdate::AddToNorm(const Bucket& bucket, ConstSpan gradient, Ops& ops, Stream& stream) const {
  if (!clips()) return;
  size_t first = bucket.first;
  const size_t end = bucket.first + bucket.count;
  const auto add = [&](size_t to) {
    if (first < to)
      ops.AddSquares(gradient.Slice(first - bucket.first, to - first), sum_of_squares_.on_device(), stream);
  };
  for (const ParameterRange& other : rule_.counted_elsewhere) {
    if (other.first >= end || other.first + other.count <= first) continue;
    add(other.first);
    first = other.first + other.count;
  }
  add(end);
}

void LocalUpdate::EndNorm(Stream& stream) const {
  if (clips()) sum_of_squares_.Download(stream);
}

absl::StatusOr<double> LocalUpdate::ClippingFactor(double sum_of_squares) const {
  if (!clips()) return 1.0;
  if (rule_.sum_over_stages != nullptr) {
    PSRING_ASSIGN_OR_RETURN(sum_of_squares, rule_.sum_over_stages(sum_of_squares));
  }
  return ClipFactor(rule_.clip_norm, sum_of_squares, samples_);
}

void LocalUpdate::ApplyTo(size_t state, Span weights, ConstSpan gradient, Ops& ops, Stream& stream,
                          double factor) const {
  optimizer_.Apply(state, weights, gradient, samples_, rate_, update_ + 1, ops, stream, factor);
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
