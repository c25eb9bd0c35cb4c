#include "common/ops/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/errors.h"

namespace psring {
namespace {

struct OptimizerRow {
  std::string name;
  std::vector<std::string> slots;
};
const OptimizerRow& RowOf(OptimizerKind kind) {
  static const auto& rows = *new std::vector<OptimizerRow>{// in the order of OptimizerKind
                                                           {"sgd", {}},
                                                           {"momentum", {"momentum_buffer"}},
                                                           {"adam", {"exp_avg", "exp_avg_sq"}},
                                                           {"adamw", {"exp_avg", "exp_avg_sq"}},
                                                           {"adagrad", {"sum"}}};
  return rows[static_cast<size_t>(kind)];
}

// 1 - beta^t for the float beta that the kernel uses: at t = 1 the corrected mean is then exactly the
// gradient.
float BiasCorrection(double beta, int64_t t) {
  const double rounded = static_cast<float>(beta);
  return static_cast<float>(1 - std::pow(rounded, static_cast<double>(t)));
}

}  // namespace

absl::StatusOr<OptimizerKind> ParseOptimizer(const std::string& name) {
  for (const auto kind : {OptimizerKind::kSgd, OptimizerKind::kMomentum, OptimizerKind::kAdam,
                          OptimizerKind::kAdamW, OptimizerKind::kAdagrad}) {
    if (name == OptimizerName(kind)) return kind;
  }
  return InvalidArgument("unknown optimizer \"", name, "\"; use sgd, momentum, adagrad, adam or adamw");
}

std::string OptimizerName(OptimizerKind kind) { return RowOf(kind).name; }

const std::vector<std::string>& OptimizerSlots(OptimizerKind kind) { return RowOf(kind).slots; }

std::vector<ParameterRange> RangesWithin(const std::vector<ParameterRange>& parts,
                                         const std::vector<ParameterRange>& ranges) {
  std::vector<ParameterRange> within;
  size_t done = 0;  // elements of the parts before
  for (const ParameterRange& part : parts) {
    for (const ParameterRange& range : ranges) {
      const size_t from = std::max(part.first, range.first);
      const size_t to = std::min(part.first + part.count, range.first + range.count);
      if (from < to) within.push_back({.first = done + from - part.first, .count = to - from});
    }
    done += part.count;
  }
  return within;
}

absl::StatusOr<LrDecay> ParseLrDecay(const std::string& name) {
  for (const LrDecay decay : {LrDecay::kConstant, LrDecay::kLinear, LrDecay::kCosine}) {
    if (name == LrDecayName(decay)) return decay;
  }
  return InvalidArgument("unknown schedule \"", name, "\"; use constant, linear or cosine");
}

std::string LrDecayName(LrDecay decay) {
  return decay == LrDecay::kConstant ? "constant" : decay == LrDecay::kLinear ? "linear" : "cosine";
}

double LearningRate(const LrSchedule& schedule, int64_t samples_before) {
  const double peak = schedule.base * schedule.scale;
  if (samples_before < schedule.warmup_samples) {
    const double progress =
        static_cast<double>(samples_before) / static_cast<double>(schedule.warmup_samples);
    const double from = schedule.decay == LrDecay::kCosine ? 0 : schedule.base;
    return from + (peak - from) * progress;
  }
  if (schedule.decay == LrDecay::kConstant) return peak;
  const int64_t left = schedule.total_samples - samples_before;
  const double part = left <= 0 ? 0
                                : static_cast<double>(left) /
                                      static_cast<double>(schedule.total_samples - schedule.warmup_samples);
  if (schedule.decay == LrDecay::kLinear) return peak * part;
  constexpr double kLowest = .1;  // nanoGPT's
  return peak * (kLowest + (1 - kLowest) * .5 * (1 + std::cos(M_PI * (1 - part))));
}

absl::StatusOr<Optimizer> Optimizer::Create(const OptimizerConfig& config, Device& device, size_t count) {
  Optimizer optimizer(config);
  for (size_t i = 0; i < OptimizerSlots(config.kind).size(); ++i) {
    PSRING_ASSIGN_OR_RETURN(Buffer slot, device.Allocate(count * sizeof(float)));
    optimizer.slots_.push_back(std::move(slot));
  }
  return optimizer;
}

OptimizerStep StepOf(const OptimizerConfig& config, int64_t samples, double learning_rate, int64_t update,
                     double factor) {
  const int64_t t = update + config.earlier_updates;
  PSRING_CHECK(samples > 0 && t > 0);
  constexpr float kAdagradEpsilon = 1e-10f;  // PyTorch's
  const float scale = static_cast<float>(factor / static_cast<double>(samples));
  const float rate = static_cast<float>(learning_rate);
  switch (config.kind) {
    case OptimizerKind::kSgd:
      return SgdStep{scale, rate};
    case OptimizerKind::kMomentum:
      return MomentumStep{scale, rate, static_cast<float>(config.momentum)};
    case OptimizerKind::kAdagrad:
      return AdagradStep{scale, rate, kAdagradEpsilon};
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      break;
  }
  return AdamStep{.scale = scale,
                  .rate = rate / BiasCorrection(config.beta1, t),
                  .beta1 = static_cast<float>(config.beta1),
                  .beta2 = static_cast<float>(config.beta2),
                  .epsilon = static_cast<float>(config.epsilon),
                  .root_correction = 1 / std::sqrt(BiasCorrection(config.beta2, t))};
}

void Optimizer::Apply(size_t first, Span weights, ConstSpan gradient, int64_t samples, double learning_rate,
                      int64_t update, Ops& ops, Stream& stream, double factor) const {
  PSRING_CHECK(weights.count == gradient.count);
  const OptimizerStep all = StepOf(config_, samples, learning_rate, update, factor);
  // Elements [from, to) of the state's range.
  const auto apply = [&](const OptimizerStep& step, size_t from, size_t to) {
    if (from == to) return;
    std::array<Span, 2> slots;
    for (size_t i = 0; i < slots_.size(); ++i) slots[i] = slots_[i].span().Slice(from, to - from);
    ops.Apply(step, weights.Slice(from - first, to - from), gradient.Slice(from - first, to - from), slots,
              stream);
  };
  const size_t end = first + weights.count;
  if (config_.kind != OptimizerKind::kAdamW) return apply(all, first, end);
  const AdamStep adam = std::get<AdamStep>(all);
  AdamStep with_decay = adam;
  with_decay.kept = static_cast<float>(1 - learning_rate * config_.weight_decay);
  size_t done = first;
  for (const ParameterRange& range : config_.no_decay) {
    const size_t from = std::clamp(range.first, done, end),
                 to = std::clamp(range.first + range.count, from, end);
    apply(with_decay, done, from);
    apply(adam, from, to);
    done = to;
  }
  apply(with_decay, done, end);
}

void Optimizer::Load(const std::vector<ConstSpan>& slots, Stream& stream) const {
  PSRING_CHECK(slots.size() == slots_.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    PSRING_CHECK(slots[i].bytes() == slots_[i].bytes());
    stream.Copy(slots_[i].data(), slots[i].data, slots[i].bytes());
  }
}

void Optimizer::Save(const std::vector<Span>& slots, Stream& stream) const {
  PSRING_CHECK(slots.size() == slots_.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    PSRING_CHECK(slots[i].bytes() == slots_[i].bytes());
    stream.Copy(slots[i].data, slots_[i].data(), slots[i].bytes());
  }
}

std::vector<Span> Optimizer::slots() const {
  std::vector<Span> spans;
  for (const Buffer& slot : slots_) spans.push_back(slot.span());
  return spans;
}

size_t Optimizer::bytes() const {
  size_t bytes = 0;
  for (const Buffer& slot : slots_) bytes += slot.bytes();
  return bytes;
}

}  // namespace psring
