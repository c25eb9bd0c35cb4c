// ZeRO (Rajbhandari et al. 2020): each rank updates one shard of each bucket, and has the optimizer state
// only of its shards (stage 1). A reduce-scatter, the update of the own shard, and an all-gather of the
// weights send the bytes of a ring all-reduce. The rest of a bucket, fewer than N elements at its end, is
// summed by an all-reduce and updated on every rank.
//
// Stage 2: of the gradient, too, a rank has only its shards, which are sums over the micro-batches, and the
// buckets of the units that are being computed. Stage 3 (FSDP): also of the weights; a bucket is gathered
// before its unit is computed, and not after its update.
//
// Hybrid (--dp_shard): each S consecutive ranks have one copy of all that. After the reduce-scatter of S
// ranks an all-reduce adds the sums of those with the same shard, of stages 2 and 3 once per step. So an
// element's sum is that over the sums of each S ranks, each in the order of the group's algorithm.
#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "trainer/strategies/group_strategy.h"

namespace psring {
namespace {

std::vector<ParameterRange> RangesOf(const std::vector<ShardedBucket>& buckets) {
  std::vector<ParameterRange> ranges;
  for (const ShardedBucket& bucket : buckets) {
    for (const ShardPart& part : bucket.parts) ranges.push_back({part.range.first, part.range.count});
  }
  return ranges;
}

// `all`: of the bucket.
template <typename View>
View Within(const View& all, const ShardedBucket& bucket, const Bucket& range) {
  return all.Slice(range.first - bucket.bucket.first, range.count);
}

class ZeroStrategy : public GroupStrategy, public ShardedState, public UnitMemory {
 public:
  ZeroStrategy(const StrategyContext& context, Parts parts, std::vector<ShardedBucket> buckets,
               Buffer numbers, Buffer host_numbers)
      : GroupStrategy(context, std::move(parts)),
        shards_(ShardGroupOf(context)),
        shard_staging_(context.device, shards_),
        buckets_(std::move(buckets)),
        numbers_(std::move(numbers)),
        host_numbers_(std::move(host_numbers)),
        reduced_(buckets_.size()),
        last_(buckets_.size()),
        gathered_(buckets_.size()),
        gathered_events_(buckets_.size()) {}
  ~ZeroStrategy() override { lane_.reset(); }
  // The ranks that have one copy of the state.
  static ProcessGroup& ShardGroupOf(const StrategyContext& context) {
    return context.shard_group != nullptr ? *context.shard_group : *context.group;
  }

  absl::StatusOr<int64_t> Start(const TrainingState& state) override {
    if (!shards_weights()) {
      PSRING_RETURN_IF_ERROR(ShareWeights(state));
    } else {
      update_.Start(state);
      if (state.has_whole_weights) PSRING_RETURN_IF_ERROR(Share(state.whole_weights, WeightParts()));
    }
    const std::vector<Span> slots = update_.optimizer().slots();
    for (size_t s = 0; s < slots.size() && state.has_slots; ++s) {
      PSRING_RETURN_IF_ERROR(Share(context_.rank == 0 ? state.slots[s] : ConstSpan(), slots[s]));
    }
    PSRING_RETURN_IF_ERROR(lane_->Synchronize());
    return state.step;
  }

  void Abort(absl::Status why) override {
    for (ProcessGroup* const part : {context_.shard_group, context_.copies}) {
      if (part != nullptr) part->Abort(why);
    }
    GroupStrategy::Abort(std::move(why));
  }

  absl::Status BeginStep(const StepInfo& info) override {
    ForgetWeights();
    gathers_.clear();
    waits_.clear();
    in_step_ = true;
    reduced_.assign(buckets_.size(), 0);
    return GroupStrategy::BeginStep(info);
  }

  void GradientReady(absl::Span<const Bucket> buckets, Event ready) override {
    for (const Bucket& bucket : buckets) Exchange(bucket, ready);
  }

  absl::StatusOr<StepReport> FinishStep() override {
    in_step_ = false;
    PSRING_ASSIGN_OR_RETURN(StepReport report, GroupStrategy::FinishStep());
    for (const auto& [bucket, time] : gathers_) {
      AddSpan(SpanKind::kCommunication, bucket, time.first, time.second);
      report.transfers.push_back(time);
    }
    // A bucket's record is its last reduction.
    report.buckets.clear();
    for (size_t i = 0; i < records_.size(); ++i) {
      if (IsLast(i)) {
        report.buckets.push_back(records_[i]);
      } else {
        report.transfers.emplace_back(records_[i].begin_ns, records_[i].end_ns);
      }
    }
    report.waits.assign(waits_.begin(), waits_.end());
    return report;
  }

  absl::StatusOr<bool> Save(Span weights, const std::vector<Span>& slots) override {
    if (shards_weights()) {
      PSRING_RETURN_IF_ERROR(Gather(WeightParts(), weights));
    } else {
      PSRING_RETURN_IF_ERROR(update_.CopyWeights(weights, *lane_));
    }
    PSRING_RETURN_IF_ERROR(GatherState(slots));
    return true;
  }
  absl::Status SendState() override {
    if (shards_weights()) PSRING_RETURN_IF_ERROR(Gather(WeightParts(), {}));
    return GatherState({});
  }

  absl::StatusOr<bool> Rank0Stops(bool stops) override {
    const HostView flag = Numbers().Slice(0, 1);
    *flag.host.floats() = stops ? 1 : 0;
    PSRING_RETURN_IF_ERROR(staging_.BroadcastFromHost(flag, *lane_));
    PSRING_RETURN_IF_ERROR(lane_->Synchronize());
    return *flag.host.floats() != 0;
  }

  bool shards_weights() const override { return context_.shards.shards_weights(); }

  absl::Status Unshard(int bucket, const Event& free) override {
    const size_t b = static_cast<size_t>(bucket);
    if (context_.shards.weights.keeps[b] && gathered_[b]) return absl::OkStatus();
    gathered_[b] = true;
    lane_->WaitFor(free);
    if (in_step_) lane_->Stamp(gathers_.emplace_back(bucket, std::pair<int64_t, int64_t>()).second.first);
    PSRING_RETURN_IF_ERROR(Complete(buckets_[b], WeightParts(), WeightBlock(b)));
    if (in_step_) lane_->Stamp(gathers_.back().second.second);
    gathered_events_[b] = lane_->Record();
    return absl::OkStatus();
  }
  Span UseWeights(int bucket) override {
    const size_t b = static_cast<size_t>(bucket);
    Wait(gathered_events_[b]);
    return WeightBlock(b).device;
  }
  void ForgetWeights() override { gathered_.assign(buckets_.size(), false); }

  Span BeginGradient(int bucket) override {
    const size_t b = static_cast<size_t>(bucket);
    Wait(free_[context_.shards.gradient.blocks[b]]);
    const Span gradient = GradientBlock(b).device;
    context_.compute.Zero(gradient.data, gradient.bytes());
    return gradient;
  }

  absl::Status ReadWeights(const TakeBucket& read) override {
    std::map<size_t, const ShardedBucket*> by_first;
    for (const ShardedBucket& bucket : buckets_) by_first[bucket.bucket.first] = &bucket;
    std::vector<float> values;
    for (const auto& [first, bucket] : by_first) {
      const HostView all = Unused(*bucket);
      values.resize(all.device.count);
      PSRING_RETURN_IF_ERROR(Complete(*bucket, WeightParts(), all));
      lane_->Copy(values.data(), all.device.data, all.device.bytes());
      PSRING_RETURN_IF_ERROR(lane_->Synchronize());
      read(bucket->bucket, values.data());
    }
    return absl::OkStatus();
  }

 protected:
  Traffic TrafficSoFar() const override {
    const Traffic all = group_.traffic();
    if (context_.copies == nullptr) return all;
    return all + context_.shard_group->traffic() + context_.copies->traffic();
  }

 private:
  void Exchange(const Bucket& bucket, const Event& ready) {
    const size_t b = static_cast<size_t>(bucket.index);
    const ShardedBucket& cut = buckets_[b];
    const bool in_block = context_.shards.shards_gradient();
    const HostView gradient = in_block ? GradientBlock(b) : GradientOf(bucket);
    const Span sent = BeginExchange(bucket, gradient, ready);
    const Span own = Within(sent, cut, cut.own().range), rest = Within(sent, cut, cut.rest().range);
    if (own.count > 0 &&
        !Enqueued(shards_.ReduceScatter(Within(sent, cut, cut.whole), own, ReduceOp::kSum, *lane_)))
      return;
    if (rest.count > 0 && !Enqueued(shards_.AllReduce(rest, rest, ReduceOp::kSum, *lane_))) return;
    if (!in_block && !(AddCopies(own) && AddCopies(rest))) return;
    const int reductions = context_.shards.ReductionsOf(b, context_.reductions);
    const bool is_first = reduced_[b]++ == 0, is_last = reduced_[b] == reductions;
    last_[b] = records_.size() - 1;
    for (const ShardPart& part : cut.parts) {
      if (part.range.count == 0) continue;
      const HostView reduced = Within(gradient, cut, part.range);
      TakeSum(reduced, Within(sent, cut, part.range));
      const Span sum = SumOf(part).device;
      if (in_block && is_first) Copy(sum, reduced.device);
      if (in_block && !is_first) lane_ops_->Add(sum, reduced.device, *lane_);
    }
    if (in_block) free_[context_.shards.gradient.blocks[b]] = lane_->Record();
    for (const ShardPart& part : cut.parts) {
      if (!is_last || part.range.count == 0) continue;
      const HostView sum = SumOf(part);
      if (in_block && context_.copies != nullptr) {
        staging_.ToGroup(sum, *lane_);
        if (!AddCopies(staging_.Seen(sum))) return;
        staging_.FromGroup(sum, *lane_);
      }
      // The rest is the same on every rank and counts once.
      const bool counts = &part == &cut.own() || shards_.rank() == 0;
      if (counts) update_.AddToNorm(part.range, sum.device, *lane_ops_, *lane_);
    }
    if (!is_last || shards_weights()) lane_->Stamp(records_.back().end_ns);
    if (is_last && updates_on_lane_) Update(cut, records_.size() - 1, /*factor=*/1);
  }

  // The sum over the ranks of one copy becomes that over all ranks. False: an error, which surfaces later.
  bool AddCopies(Span sum) {
    return context_.copies == nullptr || sum.count == 0 ||
           Enqueued(context_.copies->AllReduce(sum, sum, ReduceOp::kSum, *lane_));
  }

  // Then every rank gets all parts, unless weights are sharded. `index`: of the bucket's record.
  void Update(const ShardedBucket& cut, size_t index, double factor) {
    const HostView& weights = update_.state().weights;
    lane_->Stamp(updates_[index].first);
    for (const ShardPart& part : cut.parts) {
      const size_t first = shards_weights() ? part.at : part.range.first;
      update_.ApplyTo(part.at, weights.device.Slice(first, part.range.count), SumOf(part).device, *lane_ops_,
                      *lane_, factor);
    }
    lane_->Stamp(updates_[index].second);
    if (shards_weights()) return;
    const HostView whole = weights.Slice(cut.whole.first, cut.whole.count);
    if (whole.device.count > 0 && !Enqueued(shard_staging_.AllGather(whole, *lane_))) return;
    lane_->Stamp(records_[index].end_ns);
  }

  absl::Status UpdateAll() override {
    PSRING_ASSIGN_OR_RETURN(const double sum_of_squares, SumOverRanks(update_.sum_of_squares()));
    PSRING_ASSIGN_OR_RETURN(const double factor, update_.ClippingFactor(sum_of_squares));
    for (size_t i = 0; i < records_.size(); ++i) {
      if (IsLast(i)) Update(buckets_[static_cast<size_t>(records_[i].bucket)], i, factor);
    }
    return lane_->Synchronize();
  }

  // Of one copy. Added in the order of ranks, so that all have the same bits. An all-gather of float32
  // changes no bits.
  absl::StatusOr<double> SumOverRanks(double own) {
    constexpr size_t kFloats = sizeof(double) / sizeof(float);
    const HostView all = Numbers();
    std::memcpy(all.host.floats() + static_cast<size_t>(shards_.rank()) * kFloats, &own, sizeof own);
    PSRING_RETURN_IF_ERROR(shard_staging_.AllGatherFromHost(all, *lane_));
    PSRING_RETURN_IF_ERROR(lane_->Synchronize());
    double sum = 0;
    for (size_t at = 0; at < all.host.count; at += kFloats) {
      double of_rank = 0;
      std::memcpy(&of_rank, all.host.floats() + at, sizeof of_rank);
      sum += of_rank;
    }
    return sum;
  }

  // Between two steps, values of all elements go through the memory of a bucket's gradient, which is not
  // needed then. `parts`: one part after the other, as in the optimizer's state.
  HostView Unused(const ShardedBucket& cut) const {
    if (!context_.shards.shards_gradient()) return GradientOf(cut.bucket);
    return GradientBlock(static_cast<size_t>(cut.bucket.index));
  }
  // Every rank gets a bucket, from the parts of all.
  absl::Status Complete(const ShardedBucket& cut, ConstSpan parts, const HostView& all) {
    for (const ShardPart& part : cut.parts) {
      Copy(Within(all.device, cut, part.range), parts.Slice(part.at, part.range.count));
    }
    const HostView whole = Within(all, cut, cut.whole);
    return whole.device.count > 0 ? shard_staging_.AllGather(whole, *lane_) : absl::OkStatus();
  }
  // Rank 0's `from`, of all elements.
  absl::Status Share(ConstSpan from, Span parts) {
    for (const ShardedBucket& cut : buckets_) {
      const Span seen = staging_.Seen(Unused(cut));
      if (context_.rank == 0) Copy(seen, from.Slice(cut.bucket.first, cut.bucket.count));
      PSRING_RETURN_IF_ERROR(group_.Broadcast(seen, /*root=*/0, *lane_));
      for (const ShardPart& part : cut.parts) {
        Copy(parts.Slice(part.at, part.range.count), Within(seen, cut, part.range));
      }
    }
    return absl::OkStatus();
  }
  // `to`: all elements, on ranks that want them; else empty.
  absl::Status Gather(ConstSpan parts, Span to) {
    for (const ShardedBucket& cut : buckets_) {
      const HostView all = Unused(cut);
      PSRING_RETURN_IF_ERROR(Complete(cut, parts, all));
      if (to.count > 0) Copy(to.Slice(cut.bucket.first, cut.bucket.count), all.device);
    }
    return absl::OkStatus();
  }
  // By all ranks at once. `to`: on rank 0, the slots of all parameters.
  absl::Status GatherState(const std::vector<Span>& to) {
    const std::vector<Span> slots = update_.optimizer().slots();
    for (size_t s = 0; s < slots.size(); ++s) {
      PSRING_RETURN_IF_ERROR(Gather(slots[s], to.empty() ? Span() : to[s]));
    }
    return lane_->Synchronize();
  }

  // Whether a record is that of its bucket's last exchange.
  bool IsLast(size_t record) const { return last_[static_cast<size_t>(records_[record].bucket)] == record; }
  HostView Numbers() const { return HostView::Of(numbers_, host_numbers_); }
  Span WeightParts() const { return update_.state().weights.device.Slice(0, context_.shards.weights.parts); }
  HostView WeightBlock(size_t b) const {
    return update_.state().weights.Slice(context_.shards.weights.blocks[b], buckets_[b].bucket.count);
  }
  HostView GradientBlock(size_t b) const {
    return update_.state().gradient.Slice(context_.shards.gradient.blocks[b], buckets_[b].bucket.count);
  }
  // Of the step's gradient, summed over ranks and micro-batches.
  HostView SumOf(const ShardPart& part) const {
    const size_t first = context_.shards.shards_gradient() ? part.at : part.range.first;
    return update_.state().gradient.Slice(first, part.range.count);
  }
  void Copy(Span to, ConstSpan from) {
    if (from.count > 0) lane_->Copy(to.data, from.data, from.bytes());
  }
  void Wait(const Event& event) {
    if (!in_step_) return context_.compute.WaitFor(event);
    auto& [begin_ns, end_ns] = waits_.emplace_back();
    context_.compute.Stamp(begin_ns);
    context_.compute.WaitFor(event);
    context_.compute.Stamp(end_ns);
  }

  ProcessGroup& shards_;
  const Staging shard_staging_;
  const std::vector<ShardedBucket> buckets_;
  const Buffer numbers_, host_numbers_;  // a double of each rank of a copy
  // By bucket: its exchanges in this step, and the record of the last one; whether it was gathered in this
  // step, and the last time.
  std::vector<int> reduced_;
  std::vector<size_t> last_;
  std::vector<bool> gathered_;
  std::vector<Event> gathered_events_;
  std::map<size_t, Event> free_;  // by place of a block: the last exchange from there
  // A step is in progress, and its times, which streams write.
  bool in_step_ = false;
  std::deque<std::pair<int, std::pair<int64_t, int64_t>>> gathers_;  // with the bucket
  std::deque<std::pair<int64_t, int64_t>> waits_;                    // of the compute stream
};

}  // namespace

absl::StatusOr<Strategy> MakeZero(const StrategyContext& of_step) {
  if (of_step.world_size == 1) return MakeNone(of_step);  // without the cost of a lane
  StrategyContext context = of_step;
  context.records_steps = false;  // only forward and backward are recorded
  const ProcessGroup& shards = ZeroStrategy::ShardGroupOf(context);
  std::vector<ShardedBucket> buckets = ShardBuckets(context.buckets, shards.rank(), shards.size());
  PSRING_ASSIGN_OR_RETURN(GroupStrategy::Parts parts, GroupStrategy::PartsOf(context, RangesOf(buckets)));
  const size_t bytes = static_cast<size_t>(shards.size()) * sizeof(double);
  PSRING_ASSIGN_OR_RETURN(Buffer numbers, context.device.Allocate(bytes));
  PSRING_ASSIGN_OR_RETURN(Buffer host_numbers, AllocateHostSide(context.device, numbers));
  auto made = std::make_unique<ZeroStrategy>(context, std::move(parts), std::move(buckets),
                                             std::move(numbers), std::move(host_numbers));
  Strategy strategy{.sharded = made.get()};
  if (context.shards.shards_gradient()) strategy.units = made.get();
  if (made->rounds()) strategy.residuals = made.get();
  strategy.sync = std::move(made);
  return strategy;
}

}  // namespace psring
