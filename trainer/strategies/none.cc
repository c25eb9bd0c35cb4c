// No communication: the upper bound for other strategies' speed and, on one rank, the reference for their
// results.
#include <utility>

#include "common/base/check.h"
#include "trainer/strategies/local_update.h"
#include "trainer/strategies/strategies.h"

namespace psring {
namespace {

class NoneStrategy : public SyncStrategy, public StepRecording {
 public:
  NoneStrategy(const StrategyContext& context, LocalUpdate update)
      : context_(context),
        update_(std::move(update)),
        records_update_(context.records_steps && update_.repeats()) {}

  absl::StatusOr<int64_t> Start(const TrainingState& state) override {
    update_.Start(state);
    if (state.has_slots) {
      update_.optimizer().Load(state.slots, context_.compute);
      PSRING_RETURN_IF_ERROR(context_.compute.Synchronize());
    }
    return state.step;
  }

  absl::Status BeginStep(const StepInfo& info) override {
    info_ = info;
    update_.BeginStep(info, info.samples);
    if (info.is_repeated) return absl::OkStatus();
    records_.clear();
    records_.reserve(context_.buckets.size());  // the stream writes into them
    return absl::OkStatus();
  }

  void GradientReady(absl::Span<const Bucket> buckets, Event /*ready*/) override {
    for (const Bucket& bucket : buckets) {
      records_.push_back({.bucket = bucket.index});
      context_.compute.Stamp(records_.back().ready_ns);
    }
  }

  void FinishBackward() override {
    if (records_update_) Update(1);
  }

  // An update that is not recorded is made here, so that it does not count as backward.
  absl::StatusOr<StepReport> FinishStep() override {
    if (!records_update_ && info_.samples > 0) {
      PSRING_ASSIGN_OR_RETURN(const double factor, ClippingFactor());
      Update(factor);
    }
    PSRING_RETURN_IF_ERROR(context_.compute.Synchronize());
    for (BucketRecord& record : records_) record.begin_ns = record.end_ns = record.ready_ns;
    StepReport report;
    report.buckets = records_;
    if (info_.samples > 0) {
      context_.trace.Add({.kind = SpanKind::kOptimizer,
                          .step = info_.step,
                          .begin_ns = update_begin_ns_,
                          .end_ns = update_end_ns_});
    }
    return report;
  }

  absl::StatusOr<bool> Save(Span weights, const std::vector<Span>& slots) override {
    PSRING_RETURN_IF_ERROR(update_.Save(weights, slots, context_.compute));
    return true;
  }
  absl::Status Collect(Span weights) override { return update_.CopyWeights(weights, context_.compute); }
  size_t state_bytes() const override { return update_.optimizer().bytes(); }
  void Abort(absl::Status /*why*/) override {}  // it never waits

 private:
  // A rank's share of a short last batch may be empty: then its weights stay.
  void Update(double factor) {
    if (info_.samples == 0) return;
    context_.compute.Stamp(update_begin_ns_);
    for (const Bucket& bucket : context_.buckets) {
      update_.Apply(bucket, context_.ops, context_.compute, factor);
    }
    context_.compute.Stamp(update_end_ns_);
  }

  absl::StatusOr<double> ClippingFactor() {
    if (!update_.clips()) return 1.0;
    update_.BeginNorm(context_.compute);
    for (const Bucket& bucket : context_.buckets) update_.AddToNorm(bucket, context_.ops, context_.compute);
    update_.EndNorm(context_.compute);
    PSRING_RETURN_IF_ERROR(context_.compute.Synchronize());
    return update_.ClippingFactor(update_.sum_of_squares());
  }

  const StrategyContext context_;
  LocalUpdate update_;
  const bool records_update_;
  StepInfo info_;
  // The stream writes into these.
  std::vector<BucketRecord> records_;
  int64_t update_begin_ns_ = 0, update_end_ns_ = 0;
};

}  // namespace

absl::StatusOr<Strategy> MakeNone(const StrategyContext& context) {
  PSRING_ASSIGN_OR_RETURN(LocalUpdate update, LocalUpdate::Create(context));
  auto made = std::make_unique<NoneStrategy>(context, std::move(update));
  Strategy strategy;
  if (context.records_steps) strategy.recording = made.get();
  strategy.sync = std::move(made);
  return strategy;
}

}  // namespace psring
