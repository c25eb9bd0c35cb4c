// The group sums gradients over all ranks in place, bucket by bucket, on a separate stream (the lane). The
// lane then updates the bucket's weights, the same on every rank.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/device_factory/make_ops.h"
#include "common/kernels/reduce.h"
#include "ring_worker/groups/process_group.h"
#include "trainer/strategies/error_feedback.h"
#include "trainer/strategies/local_update.h"
#include "trainer/strategies/staging.h"
#include "trainer/strategies/strategies.h"

namespace psring {
namespace {

// Steps whose rounds are traced; more would fill the trace.
constexpr int kStepsWithRounds = 100;

// Gradients in their type on the wire: --wire. Float32 gradients are sent as they are. For 16 bits each
// rank's gradient is divided by the number of ranks first, so that the sum does not overflow float16, and
// rounding errors are kept for the next step.
class WireCodec {
 public:
  // For gradients of `count` elements. InvalidArgument: 16 bits, and the group works on GPU memory.
  static absl::StatusOr<WireCodec> Create(DType wire, size_t count, const GroupInfo& group) {
    WireCodec codec(group.size);
    if (wire == DType::kFloat32) return codec;
    if (group.on_gpu) {
      return absl::InvalidArgumentError(
          "--wire with 16 bits rounds gradients on the host, but NCCL moves them directly between GPUs; omit "
          "it, or give --backend native");
    }
    const std::unique_ptr<Device> host = MakeCpuDevice();
    PSRING_ASSIGN_OR_RETURN(codec.feedback_, ErrorFeedback::Create(wire, count, /*shared=*/false, *host));
    return codec;
  }

  bool rounds() const { return feedback_.has_value(); }
  // Only if it rounds.
  ErrorFeedback& feedback() { return *feedback_; }
  const ErrorFeedback& feedback() const { return *feedback_; }

  // Both work in stream order, and this object must exist until then. Encode returns what to send for
  // `gradient`, elements from `first` on, in host memory if it is rounded. Decode turns what was received in
  // its place into the sum over all ranks.
  Span Encode(size_t first, Span gradient, Stream& stream) {
    if (!rounds()) return gradient;
    stream.Run([this, first, gradient] {
      cpu::Scale(gradient.type, gradient.count, gradient.data, 1 / ranks_);
      feedback_->Encode(first, gradient);
      return absl::OkStatus();
    });
    return feedback_->encoded().Slice(first, gradient.count);
  }
  void Decode(Span sent, Span gradient, Stream& stream) {
    if (!rounds()) return;
    stream.Run([this, sent, gradient] {
      cpu::Convert(sent.type, sent.data, gradient.type, gradient.data, gradient.count);
      cpu::Scale(gradient.type, gradient.count, gradient.data, ranks_);
      return absl::OkStatus();
    });
  }

 private:
  explicit WireCodec(int ranks) : ranks_(static_cast<float>(ranks)) {}

  float ranks_;
  std::optional<ErrorFeedback> feedback_;
};

class AllReduceStrategy : public SyncStrategy, public StepRecording, public Residuals {
 public:
  AllReduceStrategy(const StrategyContext& context, LocalUpdate update, std::unique_ptr<Ops> lane_ops,
                    WireCodec codec)
      : context_(context),
        group_(*context.group),
        staging_(context.device, group_),
        codec_(std::move(codec)),
        update_(std::move(update)),
        lane_ops_(std::move(lane_ops)),
        updates_on_lane_(!update_.clips() && (!context.records_steps || update_.repeats())),
        // A group whose calls can be recorded only enqueues, so that it needs no thread.
        lane_(context.device.NewStream(context.records_steps ? StreamKind::kCompute : StreamKind::kBackground,
                                       "synchronize")) {}

  absl::StatusOr<int64_t> Start(const TrainingState& state) override {
    update_.Start(state);
    if (codec_.rounds() && state.residual.count > 0) codec_.feedback().Load(state.residual);
    PSRING_RETURN_IF_ERROR(staging_.Broadcast(state.weights, *lane_));
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
    info_ = info;
    if (codec_.rounds()) codec_.feedback().BeginStep(info.step);
    update_.BeginStep(info, info.global_samples);
    traffic_before_ = group_.traffic();
    // The lane writes into them, so they must not move.
    if (!info.is_repeated) {
      records_.clear();
      records_.reserve(context_.buckets.size());
      updated_ns_.assign(context_.buckets.size(), 0);
    }
    rounds_.clear();
    if (auto* const group = dynamic_cast<RoundRecording*>(&group_)) {
      group->NoteRounds(steps_begun_++ < kStepsWithRounds ? &rounds_ : nullptr);
    }
    update_.BeginNorm(outside());
    return BroadcastBuffers();
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
    if (!context_.records_steps) context_.compute.Stamp(backward_ns_);
    update_.EndNorm(outside());
    // Wait for both even if one fails: their work uses memory that a failed step releases.
    const absl::Status summed = lane_->Synchronize(), computed = context_.compute.Synchronize();
    PSRING_RETURN_IF_ERROR(summed);
    PSRING_RETURN_IF_ERROR(computed);
    if (!updates_on_lane_) PSRING_RETURN_IF_ERROR(UpdateAll());
    for (size_t i = 0; i < records_.size(); ++i) AddSpans(records_[i], updated_ns_[i]);
    StepReport report{.traffic = group_.traffic() - traffic_before_};
    // The update after the last bucket's arrival is not communication.
    if (!records_.empty()) report.exposed_ns = std::max<int64_t>(0, records_.back().end_ns - backward_ns_);
    report.exposed_ns += buffers_arrived_ns_ - buffers_begin_ns_;
    report.buckets = records_;  // a copy: a recording writes into records_ again
    return report;
  }

  absl::StatusOr<bool> Save(Span weights, const std::vector<Span>& slots) override {
    PSRING_RETURN_IF_ERROR(update_.Save(weights, slots, *lane_));
    return true;
  }
  absl::Status Collect(Span weights) override { return update_.CopyWeights(weights, *lane_); }
  void Abort(absl::Status why) override { group_.Abort(std::move(why)); }

  ConstSpan ResidualBefore(int64_t step) const override { return codec_.feedback().Before(step); }

 private:
  // Before forward, as DDP does.
  absl::Status BroadcastBuffers() {
    const HostView& buffers = update_.state().buffers;
    if (buffers.device.count == 0) return absl::OkStatus();
    outside().WaitFor(context_.compute.Record());
    outside().Stamp(buffers_begin_ns_);
    PSRING_RETURN_IF_ERROR(staging_.Broadcast(buffers, outside()));
    outside().Stamp(buffers_arrived_ns_);
    context_.compute.WaitFor(outside().Record());
    return absl::OkStatus();
  }

  // One bucket: encode, all-reduce, decode, update.
  void Sum(const Bucket& bucket, Event ready) {
    BucketRecord& record = records_.emplace_back(BucketRecord{.bucket = bucket.index});
    const HostView gradient = update_.state().gradient.Slice(bucket.first, bucket.count);

    context_.compute.Stamp(record.ready_ns);
    lane_->WaitFor(ready);
    staging_.ToGroup(gradient, *lane_);
    const Span sent = codec_.Encode(bucket.first, staging_.Seen(gradient), *lane_);
    lane_->Stamp(record.begin_ns);
    if (!Enqueued(group_.AllReduce(sent, sent, ReduceOp::kSum, *lane_))) return;
    lane_->Stamp(record.end_ns);
    codec_.Decode(sent, staging_.Seen(gradient), *lane_);
    staging_.FromGroup(gradient, *lane_);
    Summed(bucket, records_.size() - 1);
  }

  // Several buckets in one call of the group.
  void SumTogether(absl::Span<const Bucket> buckets, Event ready) {
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

  // An error surfaces at the lane's Synchronize.
  bool Enqueued(const absl::Status& status) {
    if (!status.ok()) lane_->Run([status] { return status; });
    return status.ok();
  }

  // After the sum of a bucket, whose record is records_[index]. Clipping needs the norm of all buckets first.
  void Summed(const Bucket& bucket, size_t index) {
    update_.AddToNorm(bucket, *lane_ops_, *lane_);
    if (!updates_on_lane_) return;
    update_.Apply(bucket, *lane_ops_, *lane_);
    lane_->Stamp(updated_ns_[index]);
  }

  // The stream for work that is in no recording.
  Stream& outside() { return context_.records_steps ? context_.compute : *lane_; }

  // After all sums. Every rank has the same gradient, and so the same norm.
  absl::Status UpdateAll() {
    PSRING_ASSIGN_OR_RETURN(const double factor, update_.ClippingFactor());
    int64_t begin = 0, end = 0;
    outside().Stamp(begin);
    for (const Bucket& bucket : context_.buckets) update_.Apply(bucket, *lane_ops_, outside(), factor);
    outside().Stamp(end);
    PSRING_RETURN_IF_ERROR(outside().Synchronize());
    AddSpan(SpanKind::kOptimizer, -1, begin, end);
    return absl::OkStatus();
  }

  void AddSpan(SpanKind kind, int bucket, int64_t begin, int64_t end) {
    context_.trace.Add(
        {.kind = kind, .step = info_.step, .bucket = bucket, .begin_ns = begin, .end_ns = end});
  }

  void AddSpans(const BucketRecord& record, int64_t updated_ns) {
    AddSpan(SpanKind::kCommunication, record.bucket, record.begin_ns, record.end_ns);
    // The lane sends one bucket after the other, so a round belongs to the bucket in whose time it lies.
    for (const RoundTime& round : rounds_) {
      if (round.begin_ns < record.begin_ns || round.end_ns > record.end_ns) continue;
      context_.trace.Add({.kind = SpanKind::kRound,
                          .step = info_.step,
                          .bucket = record.bucket,
                          .begin_ns = round.begin_ns,
                          .end_ns = round.end_ns,
                          .round = round.round});
    }
    if (updated_ns > 0) AddSpan(SpanKind::kOptimizer, record.bucket, record.end_ns, updated_ns);
  }

  const StrategyContext context_;
  ProcessGroup& group_;
  const Staging staging_;
  WireCodec codec_;
  LocalUpdate update_;
  const std::unique_ptr<Ops> lane_ops_;  // the compute thread uses its own
  StepInfo info_;
  Traffic traffic_before_;
  int64_t steps_begun_ = 0;
  const bool updates_on_lane_;  // each after its bucket's sum; else all at the end
  // Streams write into these until they are synchronized.
  int64_t buffers_begin_ns_ = 0, buffers_arrived_ns_ = 0;
  int64_t backward_ns_ = 0;  // backward was done
  std::vector<BucketRecord> records_;
  std::vector<int64_t> updated_ns_;  // parallel to records_
  std::vector<RoundTime> rounds_;
  const std::unique_ptr<Stream> lane_;  // last: its work uses the above
};

}  // namespace

absl::StatusOr<Strategy> MakeAllReduce(const StrategyContext& context) {
  if (context.world_size == 1) return MakeNone(context);  // without the cost of a lane
  PSRING_CHECK(context.group != nullptr && context.group->size() == context.world_size);
  size_t count = 0;
  for (const Bucket& bucket : context.buckets) count += bucket.count;
  PSRING_ASSIGN_OR_RETURN(LocalUpdate update, LocalUpdate::Create(context));
  PSRING_ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops, MakeOps(context.device, context.threads));
  PSRING_ASSIGN_OR_RETURN(WireCodec codec, WireCodec::Create(context.wire, count, context.group->info()));
  const bool rounds = codec.rounds();
  auto made =
      std::make_unique<AllReduceStrategy>(context, std::move(update), std::move(ops), std::move(codec));
  Strategy strategy;
  if (context.records_steps) strategy.recording = made.get();
  if (rounds) strategy.residuals = made.get();
  strategy.sync = std::move(made);
  return strategy;
}

}  // namespace psring
