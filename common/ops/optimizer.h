// Optimizers and learning-rate schedules. Workers (all-reduce strategies) and servers run the same code on
// slices of the flat parameters, so both compute the same bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/ops/ops.h"

namespace psring {

enum class OptimizerKind { kSgd, kMomentum, kAdam, kAdamW, kAdagrad };

absl::StatusOr<OptimizerKind> ParseOptimizer(
    const std::string& name);  // "sgd", "momentum", "adam", "adamw", "adagrad"
std::string OptimizerName(OptimizerKind kind);

// The names of the slots of its state, in order, as in PyTorch.
const std::vector<std::string>& OptimizerSlots(OptimizerKind kind);

// Elements of the flat parameters.
struct ParameterRange {
  size_t first, count;
  bool operator==(const ParameterRange&) const = default;
};

// Where the elements of `ranges` are in the sequence of `parts`, one part after the other; elements outside
// of `parts` are left out.
std::vector<ParameterRange> RangesWithin(const std::vector<ParameterRange>& parts,
                                         const std::vector<ParameterRange>& ranges);

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kMomentum;
  double momentum = 0.9;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;            // of AdamW, multiplied by the learning rate
  std::vector<ParameterRange> no_decay;  // of AdamW, in order, disjoint: biases and norms, for example
  // Adam's t is the number of an update plus this. A resumed run counts its updates from the position in the
  // data, and the state that it continues may have had fewer updates (then this is negative) or more.
  int64_t earlier_updates = 0;
  bool operator==(const OptimizerConfig&) const = default;
};

enum class LrDecay { kConstant, kLinear, kCosine };
absl::StatusOr<LrDecay> ParseLrDecay(const std::string& name);  // "constant", "linear", "cosine"
std::string LrDecayName(LrDecay decay);

// The learning rate as a function of the samples in earlier updates, so that every mode has the same schedule
// whatever its number of updates.
struct LrSchedule {
  LrDecay decay = LrDecay::kConstant;
  double base = 0.05;  // the rate of one update before scaling and decay
  double scale =
      1;  // linear scaling (Goyal et al. 2017): samples in one update / samples in one worker's batch
  // From base (unscaled), or with cosine decay from 0, linearly up to base * scale.
  int64_t warmup_samples = 0;
  // At which linear decay reaches 0, and cosine decay (Loshchilov & Hutter 2017) a tenth of base * scale.
  int64_t total_samples = 0;
  bool operator==(const LrSchedule&) const = default;
};

double LearningRate(const LrSchedule& schedule, int64_t samples_before);

// One update: `gradient` is a sum over `samples` samples, whose mean is multiplied by `factor`
// (gradient_norm.h); `update` counts from 1. Without AdamW's decay.
OptimizerStep StepOf(const OptimizerConfig& config, int64_t samples, double learning_rate, int64_t update,
                     double factor = 1);

// The optimizer's state for `count` parameters on the device: 0, 1 or 2 slots of that count. Distinct ranges
// may be applied concurrently by distinct threads, each with its own Ops.
class Optimizer {
 public:
  static absl::StatusOr<Optimizer> Create(const OptimizerConfig& config, Device& device, size_t count);

  // Enqueues one update of elements [first, first + weights.count) of the state's range. `gradient` is a sum
  // over `samples` samples; its mean is first multiplied by `factor` (gradient_norm.h). `update` counts the
  // updates of this range from 1.
  void Apply(size_t first, Span weights, ConstSpan gradient, int64_t samples, double learning_rate,
             int64_t update, Ops& ops, Stream& stream, double factor = 1) const;

  const OptimizerConfig& config() const { return config_; }
  std::vector<Span> slots() const;  // in the order of OptimizerSlots
  size_t bytes() const;             // of all slots
  // For checkpoints: each slot's values, read or written in the order of `stream`.
  void Load(const std::vector<ConstSpan>& slots, Stream& stream) const;
  void Save(const std::vector<Span>& slots, Stream& stream) const;

 private:
  explicit Optimizer(const OptimizerConfig& config) : config_(config) {}

  OptimizerConfig config_;
  std::vector<Buffer> slots_;
};

}  // namespace psring
