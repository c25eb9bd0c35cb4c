// No communication at all: the ceiling that every strategy is held against, and, on one rank, the reference.
#include "common/check.h"
#include "common/gradient_norm.h"
#include "trainer/recorded_pass.h"
#include "trainer/strategies/strategies.h"

namespace psring {
namespace {

class NoneStrategy : public SyncStrategy {
 public:
  NoneStrategy(const StrategyContext& context, Optimizer optimizer, DeviceValue<double> sum_of_squares)
      : context_(context), optimizer_(std::move(optimizer)), sum_of_squares_(std::move(sum_of_squares)) {}

  absl::Status Start(const TrainingState& state) override {
    state_ = state;
    if (!state.has_slots) return absl::OkStatus();
    optimizer_.Load(state.slots, context_.compute);
    return context_.compute.Synchronize();
  }

  absl::Status BeginStep(const StepInfo& info) override {
    info_ = info;
    report_ = {};
    report_.buckets.reserve(context_.buckets.size());  // the stream writes into them
    return absl::OkStatus();
  }

  void GradientReady(const Bucket& bucket, Event /*ready*/) override {
    report_.buckets.push_back({.bucket = bucket.index});
    context_.compute.Stamp(report_.buckets.back().ready_ns);
  }

  // The updates wait until here so that they are not taken for a part of backward.
  absl::StatusOr<StepReport> FinishStep() override {
    // A rank's share of a short last batch may be nothing.
    if (info_.samples == 0) return std::move(report_);
    const double rate = LearningRate(context_.schedule, info_.global_samples_before);
    PSRING_ASSIGN_OR_RETURN(const double factor, Factor());
    int64_t begin = 0, end = 0;
    context_.compute.Stamp(begin);
    PSRING_RETURN_IF_ERROR(Update(rate, factor));
    context_.compute.Stamp(end);
    PSRING_RETURN_IF_ERROR(context_.compute.Synchronize());
    context_.trace.Add({.kind = SpanKind::kOptimizer, .step = info_.step, .begin_ns = begin, .end_ns = end});
    for (BucketRecord& record : report_.buckets) record.begin_ns = record.end_ns = record.ready_ns;
    return std::move(report_);
  }

  absl::Status Collect(Span weights) override {
    if (weights.data == state_.weights.device.data) return absl::OkStatus();
    context_.compute.Copy(weights.data, state_.weights.device.data, weights.bytes());
    return context_.compute.Synchronize();
  }

  absl::StatusOr<bool> Save(Span weights, const std::vector<Span>& slots) override {
    context_.compute.Copy(weights.data, state_.weights.device.data, weights.bytes());
    optimizer_.Save(slots, context_.compute);
    PSRING_RETURN_IF_ERROR(context_.compute.Synchronize());
    return true;
  }

  void Abort(absl::Status /*why*/) override {}  // it never waits

 private:
  // What an update's kernels are given besides memory.
  struct Numbers {
    int64_t samples = 0, step = 0;
    double rate = 0, factor = 0;
    bool operator==(const Numbers&) const = default;
  };

  absl::Status Update(double rate, double factor) {
    const auto enqueue = [&](const RecordedPass::Ready&) {
      for (const Bucket& bucket : context_.buckets) {
        optimizer_.Apply(bucket.first, state_.weights.device.Slice(bucket.first, bucket.count),
                         state_.gradient.device.Slice(bucket.first, bucket.count), info_.samples, rate,
                         info_.step + 1, context_.ops, context_.compute, factor);
      }
    };
    if (!context_.cuda_graph) {
      enqueue({});
      return absl::OkStatus();
    }
    // Adam's correct the bias of each step, so there is nothing to repeat.
    const bool counts_steps = context_.optimizer.kind == OptimizerKind::kAdam;
    const Numbers numbers{info_.samples, counts_steps ? info_.step : 0, rate, factor};
    if (!(numbers == recorded_with_)) recorded_ = RecordedPass();
    recorded_with_ = numbers;
    return recorded_.Run(context_.compute, enqueue, {});
  }

  // Of clipping, over all buckets.
  absl::StatusOr<double> Factor() {
    if (context_.clip_norm == 0) return 1.0;
    sum_of_squares_.Zero(context_.compute);
    for (const Bucket& bucket : context_.buckets) {
      context_.ops.AddSquares(state_.gradient.device.Slice(bucket.first, bucket.count),
                              sum_of_squares_.on_device(), context_.compute);
    }
    sum_of_squares_.Download(context_.compute);
    PSRING_RETURN_IF_ERROR(context_.compute.Synchronize());
    return ClipFactor(context_.clip_norm, sum_of_squares_.on_host(), info_.samples);
  }

  const StrategyContext context_;
  const Optimizer optimizer_;
  const DeviceValue<double> sum_of_squares_;  // of the gradient; clipping
  TrainingState state_;
  StepInfo info_;
  StepReport report_;
  RecordedPass recorded_;  // the update, as long as its numbers stay the same
  Numbers recorded_with_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SyncStrategy>> MakeNone(const StrategyContext& context) {
  size_t count = 0;
  for (const Bucket& bucket : context.buckets) count += bucket.count;
  PSRING_ASSIGN_OR_RETURN(Optimizer optimizer, Optimizer::Create(context.optimizer, context.device, count));
  PSRING_ASSIGN_OR_RETURN(DeviceValue<double> sum_of_squares, DeviceValue<double>::Create(context.device));
  return std::make_unique<NoneStrategy>(context, std::move(optimizer), std::move(sum_of_squares));
}

}  // namespace psring
