// The group sums gradients over all ranks in place, bucket by bucket, on the lane. The lane then updates the
// bucket's weights, the same on every rank.
#include <memory>
#include <utility>

#include "trainer/strategies/group_strategy.h"

namespace psring {
namespace {

// Steps whose rounds are traced; more would fill the trace.
constexpr int kStepsWithRounds = 100;

class AllReduceStrategy : public GroupStrategy, public StepRecording {
 public:
  AllReduceStrategy(const StrategyContext& context, Parts parts) : GroupStrategy(context, std::move(parts)) {}
  ~AllReduceStrategy() override { lane_.reset(); }

  absl::StatusOr<int64_t> Start(const TrainingState& state) override {
    PSRING_RETURN_IF_ERROR(ShareWeights(state));
    if (state.has_slots) {
      if (context_.rank == 0) update_.optimizer().Load(state.slots, *lane_);
      for (const Span& slot : update_.optimizer().slots()) {
        // A group that sees only host memory gets the slots through the weights' host buffer, which is
        // refilled below.
        PSRING_RETURN_IF_ERROR(staging_.Broadcast(
            staging_.in_place() ? HostView::Of(slot) : HostView{slot, state.weights.host}, *lane_));
      }
      staging_.ToGroup(state.weights, *lane_);
    }
    PSRING_RETURN_IF_ERROR(lane_->Synchronize());
    return state.step;
  }

  absl::Status BeginStep(const StepInfo& info) override {
    rounds_.clear();
    if (auto* const group = dynamic_cast<RoundRecording*>(&group_)) {
      group->NoteRounds(steps_begun_++ < kStepsWithRounds ? &rounds_ : nullptr);
    }
    return GroupStrategy::BeginStep(info);
  }

  void GradientReady(absl::Span<const Bucket> buckets, Event ready) override {
    if (buckets.size() > 1 && group_.info().joins_calls && !codec_.rounds())
      return SumTogether(buckets, ready);
    for (const Bucket& bucket : buckets) Sum(bucket, ready);
  }

  void FinishBackward() override {
    context_.compute.Stamp(backward_ns_);
    context_.compute.WaitFor(lane_->Record());
  }

  absl::StatusOr<StepReport> FinishStep() override {
    PSRING_ASSIGN_OR_RETURN(StepReport report, GroupStrategy::FinishStep());
    for (const BucketRecord& record : records_) AddRounds(record);
    return report;
  }

  absl::StatusOr<bool> Save(Span weights, const std::vector<Span>& slots) override {
    PSRING_RETURN_IF_ERROR(update_.Save(weights, slots, *lane_));
    return true;
  }

 private:
  // One bucket: encode, all-reduce, decode, update.
  void Sum(const Bucket& bucket, const Event& ready) {
    const Span sent = BeginExchange(bucket, GradientOf(bucket), ready);
    if (!Enqueued(group_.AllReduce(sent, sent, ReduceOp::kSum, *lane_))) return;
    lane_->Stamp(records_.back().end_ns);
    TakeSum(GradientOf(bucket), sent);
    Summed(bucket, records_.size() - 1);
  }

  // Several buckets in one call of the group.
  void SumTogether(absl::Span<const Bucket> buckets, const Event& ready) {
    const size_t first = records_.size();
    std::vector<Span> gradients;
    lane_->WaitFor(ready);
    for (const Bucket& bucket : buckets) {
      BucketRecord& record = records_.emplace_back(BucketRecord{.bucket = bucket.index});
      gradients.push_back(update_.state().gradient.device.Slice(bucket.first, bucket.count));
      context_.compute.Stamp(record.ready_ns);
      lane_->Stamp(record.begin_ns);
    }
    if (!Enqueued(group_.AllReduceTogether(gradients, ReduceOp::kSum, *lane_))) return;
    for (size_t i = 0; i < buckets.size(); ++i) lane_->Stamp(records_[first + i].end_ns);
    for (size_t i = 0; i < buckets.size(); ++i) Summed(buckets[i], first + i);
  }

  // After the sum of a bucket, whose record is records_[index]. Clipping needs the norm of all buckets first.
  void Summed(const Bucket& bucket, size_t index) {
    update_.AddToNorm(bucket, *lane_ops_, *lane_);
    if (!updates_on_lane_) return;
    lane_->Stamp(updates_[index].first);
    update_.Apply(bucket, *lane_ops_, *lane_);
    lane_->Stamp(updates_[index].second);
  }

  // Every rank has the same gradient, and so the same norm.
  absl::Status UpdateAll() override {
    PSRING_ASSIGN_OR_RETURN(const double factor, update_.ClippingFactor(update_.sum_of_squares()));
    int64_t begin = 0, end = 0;
    outside().Stamp(begin);
    for (const Bucket& bucket : context_.buckets) update_.Apply(bucket, *lane_ops_, outside(), factor);
    outside().Stamp(end);
    PSRING_RETURN_IF_ERROR(outside().Synchronize());
    AddSpan(SpanKind::kOptimizer, -1, begin, end);
    return absl::OkStatus();
  }

  // The lane sends one bucket after the other, so a round belongs to the bucket in whose time it lies.
  void AddRounds(const BucketRecord& record) {
    for (const RoundTime& round : rounds_) {
      if (round.begin_ns < record.begin_ns || round.end_ns > record.end_ns) continue;
      context_.trace.Add({.kind = SpanKind::kRound,
                          .step = info_.step,
                          .bucket = record.bucket,
                          .begin_ns = round.begin_ns,
                          .end_ns = round.end_ns,
                          .round = round.round});
    }
  }

  int64_t steps_begun_ = 0;
  std::vector<RoundTime> rounds_;  // the lane writes into it
};

}  // namespace

absl::StatusOr<Strategy> MakeAllReduce(const StrategyContext& context) {
  if (context.world_size == 1) return MakeNone(context);  // without the cost of a lane
  PSRING_ASSIGN_OR_RETURN(GroupStrategy::Parts parts, GroupStrategy::PartsOf(context));
  auto made = std::make_unique<AllReduceStrategy>(context, std::move(parts));
  Strategy strategy;
  if (context.records_steps) strategy.recording = made.get();
  if (made->rounds()) strategy.residuals = made.get();
  strategy.sync = std::move(made);
  return strategy;
}

}  // namespace psring
