// No communication at all: the ceiling that every strategy is held against, and, on one rank, the reference.
#include "common/base/check.h"
#include "common/ops/gradient_norm.h"
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
    rate_ = LearningRate(context_.schedule, info.global_samples_before);
    if (info.is_repeated) return absl::OkStatus();
    records_.clear();
    records_.reserve(context_.buckets.size());  // the stream writes into them
    return absl::OkStatus();
  }

  void GradientReady(const Bucket& bucket, Event /*ready*/) override {
    records_.push_back({.bucket = bucket.index});
    context_.compute.Stamp(records_.back().ready_ns);
  }

  bool records_steps() const override { return context_.cuda_graph; }

  // A rank's share of a short last batch may be nothing.
  void FinishBackward() override {
    if (!records_updates_ || info_.samples == 0) return;
    context_.compute.Stamp(update_begin_ns_);
    Update(1);
    context_.compute.Stamp(update_end_ns_);
  }

  // Updates that are not recorded wait until here so that they are not taken for a part of backward.
  absl::StatusOr<StepReport> FinishStep() override {
    StepReport report;
    if (!records_updates_ && info_.samples > 0) {
      PSRING_ASSIGN_OR_RETURN(const double factor, Factor());
      context_.compute.Stamp(update_begin_ns_);
      Update(factor);
      context_.compute.Stamp(update_end_ns_);
    }
    PSRING_RETURN_IF_ERROR(context_.compute.Synchronize());
    for (BucketRecord& record : records_) record.begin_ns = record.end_ns = record.ready_ns;
    report.buckets = records_;
    if (info_.samples == 0) return report;
    context_.trace.Add({.kind = SpanKind::kOptimizer,
                        .step = info_.step,
                        .begin_ns = update_begin_ns_,
                        .end_ns = update_end_ns_});
    return report;
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
  void Update(double factor) {
    for (const Bucket& bucket : context_.buckets) {
      optimizer_.Apply(bucket.first, state_.weights.device.Slice(bucket.first, bucket.count),
                       state_.gradient.device.Slice(bucket.first, bucket.count), info_.samples, rate_,
                       info_.step + 1, context_.ops, context_.compute, factor);
    }
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
  const bool records_updates_ = context_.cuda_graph && UpdatesRepeat(context_);
  StepInfo info_;
  double rate_ = 0;
  // The stream writes into these.
  std::vector<BucketRecord> records_;
  int64_t update_begin_ns_ = 0, update_end_ns_ = 0;
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
