// No communication at all: the ceiling that every strategy is held against, and, on one rank, the reference.
#include "common/check.h"
#include "common/gradient_norm.h"
#include "trainer/strategies/strategies.h"

namespace psring {
namespace {

class NoneStrategy : public SyncStrategy {
 public:
  NoneStrategy(const StrategyContext& context, Optimizer optimizer)
      : context_(context), optimizer_(std::move(optimizer)) {}

  absl::Status Start(const TrainingState& state) override {
    state_ = state;
    if (!state.has_slots) return absl::OkStatus();
    optimizer_.Load(state.slots, context_.compute);
    return context_.compute.Synchronize();
  }

  absl::Status BeginStep(const StepInfo& info) override {
    info_ = info;
    report_ = {};
    return absl::OkStatus();
  }

  void GradientReady(const Bucket& bucket, Event /*ready*/) override {
    const int64_t now = context_.trace.Now();
    report_.buckets.push_back({.bucket = bucket.index, .ready_ns = now, .begin_ns = now, .end_ns = now});
  }

  // The updates wait until here so that they are not taken for a part of backward.
  absl::StatusOr<StepReport> FinishStep() override {
    const int64_t begin = context_.trace.Now();
    // A rank's share of a short last batch may be nothing.
    if (info_.samples == 0) return std::move(report_);
    const double rate = LearningRate(context_.schedule, info_.global_samples_before);
    PSRING_ASSIGN_OR_RETURN(const double factor, Factor());
    for (const Bucket& bucket : context_.buckets) {
      optimizer_.Apply(bucket.first, state_.weights.Slice(bucket.first, bucket.count),
                       state_.gradient.Slice(bucket.first, bucket.count), info_.samples, rate, info_.step + 1,
                       context_.ops, context_.compute, factor);
    }
    PSRING_RETURN_IF_ERROR(context_.compute.Synchronize());
    context_.trace.Add({.kind = SpanKind::kOptimizer,
                        .step = info_.step,
                        .begin_ns = begin,
                        .end_ns = context_.trace.Now()});
    return std::move(report_);
  }

  absl::Status Collect(Span weights) override {
    if (weights.data == state_.weights.data) return absl::OkStatus();
    context_.compute.Copy(weights.data, state_.weights.data, weights.bytes());
    return context_.compute.Synchronize();
  }

  absl::StatusOr<bool> Save(Span weights, const std::vector<Span>& slots) override {
    context_.compute.Copy(weights.data, state_.weights.data, weights.bytes());
    optimizer_.Save(slots, context_.compute);
    PSRING_RETURN_IF_ERROR(context_.compute.Synchronize());
    return true;
  }

  void Abort(absl::Status /*why*/) override {}  // it never waits

 private:
  // Of clipping, over all buckets.
  absl::StatusOr<double> Factor() {
    if (context_.clip_norm == 0) return 1.0;
    PSRING_RETURN_IF_ERROR(context_.compute.Synchronize());
    double sum_of_squares = 0;
    for (const Bucket& bucket : context_.buckets) {
      sum_of_squares += SumOfSquares(state_.gradient.floats() + bucket.first, bucket.count);
    }
    return ClipFactor(context_.clip_norm, sum_of_squares, info_.samples);
  }

  const StrategyContext context_;
  const Optimizer optimizer_;
  TrainingState state_;
  StepInfo info_;
  StepReport report_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SyncStrategy>> MakeNone(const StrategyContext& context) {
  size_t count = 0;
  for (const Bucket& bucket : context.buckets) count += bucket.count;
  PSRING_ASSIGN_OR_RETURN(Optimizer optimizer, Optimizer::Create(context.optimizer, context.device, count));
  return std::make_unique<NoneStrategy>(context, std::move(optimizer));
}

}  // namespace psring
