// ZeRO stage 1 (Rajbhandari et al. 2020): each rank updates one shard of each bucket, and has the optimizer
// state only of its shards. A bucket's shards are equal parts, rank r's the r-th: a reduce-scatter, the
// update of the own shard, and an all-gather of the weights send the bytes of a ring all-reduce. The rest,
// fewer than N elements at the bucket's end, is summed by an all-reduce and updated on every rank.
#include <cstring>
#include <memory>
#include <utility>

#include "trainer/strategies/group_strategy.h"

namespace psring {
namespace {

// Elements that this rank updates, and their place in the optimizer's state.
struct UpdatedPart {
  Bucket range;
  size_t state = 0;
};

struct CutBucket {
  Bucket bucket, whole;  // `whole`: the equal parts of all ranks
  UpdatedPart parts[2];  // this rank's part of `whole`, and the rest
  const UpdatedPart& own() const { return parts[0]; }
  const UpdatedPart& rest() const { return parts[1]; }
};

std::vector<CutBucket> CutForRank(const std::vector<Bucket>& buckets, size_t rank, size_t ranks) {
  std::vector<CutBucket> cuts;
  size_t state = 0;
  for (const Bucket& bucket : buckets) {
    const auto& [index, first, count] = bucket;
    const size_t each = count / ranks, rest = count % ranks;
    cuts.push_back({.bucket = bucket,
                    .whole = {index, first, ranks * each},
                    .parts = {{{index, first + rank * each, each}, state},
                              {{index, first + ranks * each, rest}, state + each}}});
    state += each + rest;
  }
  return cuts;
}

std::vector<ParameterRange> RangesOf(const std::vector<CutBucket>& cuts) {
  std::vector<ParameterRange> ranges;
  for (const CutBucket& cut : cuts) {
    for (const UpdatedPart& part : cut.parts) ranges.push_back({part.range.first, part.range.count});
  }
  return ranges;
}

class Zero1Strategy : public GroupStrategy, public ShardedState {
 public:
  Zero1Strategy(const StrategyContext& context, Parts parts, std::vector<CutBucket> cuts, Buffer numbers,
                Buffer host_numbers)
      : GroupStrategy(context, std::move(parts)),
        cuts_(std::move(cuts)),
        numbers_(std::move(numbers)),
        host_numbers_(std::move(host_numbers)) {}
  ~Zero1Strategy() override { lane_.reset(); }

  absl::StatusOr<int64_t> Start(const TrainingState& state) override {
    PSRING_RETURN_IF_ERROR(ShareWeights(state));
    if (state.has_slots) PSRING_RETURN_IF_ERROR(ShareState(state.slots));
    PSRING_RETURN_IF_ERROR(lane_->Synchronize());
    return state.step;
  }

  void GradientReady(absl::Span<const Bucket> buckets, Event ready) override {
    for (const Bucket& bucket : buckets) Exchange(bucket, ready);
  }

  absl::StatusOr<bool> Save(Span weights, const std::vector<Span>& slots) override {
    PSRING_RETURN_IF_ERROR(update_.CopyWeights(weights, *lane_));
    PSRING_RETURN_IF_ERROR(GatherState(slots));
    return true;
  }
  absl::Status SendState() override { return GatherState({}); }

  absl::StatusOr<bool> Rank0Stops(bool stops) override {
    const HostView flag = Numbers().Slice(0, 1);
    *flag.host.floats() = stops ? 1 : 0;
    PSRING_RETURN_IF_ERROR(staging_.BroadcastFromHost(flag, *lane_));
    PSRING_RETURN_IF_ERROR(lane_->Synchronize());
    return *flag.host.floats() != 0;
  }

 private:
  void Exchange(const Bucket& bucket, const Event& ready) {
    const Span sent = BeginExchange(bucket, ready);
    const CutBucket& cut = cuts_[static_cast<size_t>(bucket.index)];
    const auto of = [&](const Bucket& range) { return sent.Slice(range.first - bucket.first, range.count); };
    const Span own = of(cut.own().range), rest = of(cut.rest().range);
    if (own.count > 0 && !Enqueued(group_.ReduceScatter(of(cut.whole), own, ReduceOp::kSum, *lane_))) return;
    if (rest.count > 0 && !Enqueued(group_.AllReduce(rest, rest, ReduceOp::kSum, *lane_))) return;
    for (const UpdatedPart& part : cut.parts) {
      if (part.range.count == 0) continue;
      TakeSum(part.range, of(part.range));
      // The rest is the same on every rank and counts once.
      const bool counts = &part == &cut.own() || context_.rank == 0;
      if (counts) update_.AddToNorm(part.range, *lane_ops_, *lane_);
    }
    if (updates_on_lane_) Update(cut, records_.size() - 1, /*factor=*/1);
  }

  // Then every rank gets all parts. `index`: of the bucket's record.
  void Update(const CutBucket& cut, size_t index, double factor) {
    lane_->Stamp(updates_[index].first);
    for (const UpdatedPart& part : cut.parts) {
      update_.ApplyAt(part.state, part.range, *lane_ops_, *lane_, factor);
    }
    lane_->Stamp(updates_[index].second);
    const HostView weights = update_.state().weights.Slice(cut.whole.first, cut.whole.count);
    if (weights.device.count > 0 && !Enqueued(staging_.AllGather(weights, *lane_))) return;
    lane_->Stamp(records_[index].end_ns);
  }

  absl::Status UpdateAll() override {
    PSRING_ASSIGN_OR_RETURN(const double sum_of_squares, SumOverRanks(update_.sum_of_squares()));
    PSRING_ASSIGN_OR_RETURN(const double factor, update_.ClippingFactor(sum_of_squares));
    for (size_t i = 0; i < records_.size(); ++i) {
      Update(cuts_[static_cast<size_t>(records_[i].bucket)], i, factor);
    }
    return lane_->Synchronize();
  }

  // Added in the order of ranks, so that all have the same bits. An all-gather of float32 changes no bits.
  absl::StatusOr<double> SumOverRanks(double own) {
    constexpr size_t kFloats = sizeof(double) / sizeof(float);
    const HostView all = Numbers();
    std::memcpy(all.host.floats() + static_cast<size_t>(context_.rank) * kFloats, &own, sizeof own);
    PSRING_RETURN_IF_ERROR(staging_.AllGatherFromHost(all, *lane_));
    PSRING_RETURN_IF_ERROR(lane_->Synchronize());
    double sum = 0;
    for (size_t at = 0; at < all.host.count; at += kFloats) {
      double of_rank = 0;
      std::memcpy(&of_rank, all.host.floats() + at, sizeof of_rank);
      sum += of_rank;
    }
    return sum;
  }

  // The optimizer's state goes through the memory of the gradient, which is not needed between two steps,
  // bucket by bucket. `from`: on rank 0, the slots of all parameters.
  absl::Status ShareState(const std::vector<ConstSpan>& from) {
    const std::vector<Span> slots = update_.optimizer().slots();
    for (size_t s = 0; s < slots.size(); ++s) {
      for (const CutBucket& cut : cuts_) {
        const Span seen = staging_.Seen(GradientOf(cut.bucket));
        if (context_.rank == 0) Copy(seen, from[s].Slice(cut.bucket.first, cut.bucket.count));
        PSRING_RETURN_IF_ERROR(group_.Broadcast(seen, /*root=*/0, *lane_));
        for (const UpdatedPart& part : cut.parts) {
          Copy(slots[s].Slice(part.state, part.range.count), staging_.Seen(GradientOf(part.range)));
        }
      }
    }
    return absl::OkStatus();
  }

  // By all ranks at once. `to`: on rank 0, the slots of all parameters.
  absl::Status GatherState(const std::vector<Span>& to) {
    const std::vector<Span> slots = update_.optimizer().slots();
    for (size_t s = 0; s < slots.size(); ++s) {
      for (const CutBucket& cut : cuts_) {
        for (const UpdatedPart& part : cut.parts) {
          Copy(GradientOf(part.range).device, slots[s].Slice(part.state, part.range.count));
        }
        if (cut.whole.count > 0) PSRING_RETURN_IF_ERROR(staging_.AllGather(GradientOf(cut.whole), *lane_));
        if (to.empty()) continue;
        Copy(to[s].Slice(cut.bucket.first, cut.bucket.count), GradientOf(cut.bucket).device);
      }
    }
    return lane_->Synchronize();
  }

  HostView Numbers() const { return HostView::Of(numbers_, host_numbers_); }
  HostView GradientOf(const Bucket& range) const {
    return update_.state().gradient.Slice(range.first, range.count);
  }
  void Copy(Span to, ConstSpan from) {
    if (from.count > 0) lane_->Copy(to.data, from.data, from.bytes());
  }

  const std::vector<CutBucket> cuts_;    // by bucket
  const Buffer numbers_, host_numbers_;  // a double of each rank
};

}  // namespace

absl::StatusOr<Strategy> MakeZero1(const StrategyContext& of_step) {
  if (of_step.world_size == 1) return MakeNone(of_step);  // without the cost of a lane
  StrategyContext context = of_step;
  context.records_steps = false;  // only forward and backward are recorded
  const size_t rank = static_cast<size_t>(context.rank), ranks = static_cast<size_t>(context.world_size);
  std::vector<CutBucket> cuts = CutForRank(context.buckets, rank, ranks);
  PSRING_ASSIGN_OR_RETURN(GroupStrategy::Parts parts, GroupStrategy::PartsOf(context, RangesOf(cuts)));
  PSRING_ASSIGN_OR_RETURN(Buffer numbers, context.device.Allocate(ranks * sizeof(double)));
  PSRING_ASSIGN_OR_RETURN(Buffer host_numbers, AllocateHostSide(context.device, numbers));
  auto made = std::make_unique<Zero1Strategy>(context, std::move(parts), std::move(cuts), std::move(numbers),
                                              std::move(host_numbers));
  Strategy strategy{.sharded = made.get()};
  if (made->rounds()) strategy.residuals = made.get();
  strategy.sync = std::move(made);
  return strategy;
}

}  // namespace psring
