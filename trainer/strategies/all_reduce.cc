// The gradients are summed over all ranks in place, bucket by bucket, on a background lane; the lane then
// makes the bucket's update, the same on every rank.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/devices/make_ops.h"
#include "common/ops/gradient_norm.h"
#include "common/reduce/reduce.h"
#include "ring_worker/groups/process_group.h"
#include "trainer/strategies/error_feedback.h"
#include "trainer/strategies/strategies.h"

namespace psring {
namespace {

// So many steps from the first one on say when each round was under way; of thousands nobody would look at
// them, and they would fill the trace.
constexpr int kStepsWithRounds = 100;

class AllReduceStrategy : public SyncStrategy {
 public:
  AllReduceStrategy(const StrategyContext& context, Optimizer optimizer, std::unique_ptr<Ops> lane_ops,
                    std::optional<ErrorFeedback> feedback, DeviceValue<double> sum_of_squares)
      : context_(context),
        buckets_(context.buckets),
        optimizer_(std::move(optimizer)),
        feedback_(std::move(feedback)),
        lane_ops_(std::move(lane_ops)),
        sum_of_squares_(std::move(sum_of_squares)),
        records_steps_(context.cuda_graph && !context.shares_process && context.group->info().recordable),
        updates_on_lane_(context.clip_norm == 0 && (!records_steps_ || UpdatesRepeat(context))),
        // A group whose calls can be recorded only enqueues, so that it needs no thread.
        lane_(context.device.NewStream(records_steps_ ? StreamKind::kCompute : StreamKind::kBackground,
                                       "synchronise")) {}

  absl::Status Start(const TrainingState& state) override {
    state_ = state;
    if (feedback_.has_value() && state.residual.count > 0) feedback_->Load(state.residual);
    PSRING_RETURN_IF_ERROR(Broadcast(state_.weights));
    if (state.has_slots) {
      if (context_.rank == 0) optimizer_.Load(state.slots, *lane_);
      for (const Span& slot : optimizer_.slots()) {
        // Through the weights' memory of the host, where the group sees only that: it is free until Start is
        // over.
        PSRING_RETURN_IF_ERROR(
            Broadcast(on_device() ? HostView::Of(slot) : HostView{slot, state_.weights.host}));
      }
      if (!on_device()) state_.weights.Download(*lane_);
    }
    return lane_->Synchronize();
  }

  absl::Status BeginStep(const StepInfo& info) override {
    info_ = info;
    if (feedback_.has_value()) feedback_->BeginStep(info.step);
    rate_ = LearningRate(context_.schedule, info.global_samples_before);
    traffic_before_ = context_.group->traffic();
    // The lane writes into them, so they must not move.
    if (!info.is_repeated) {
      records_.clear();
      records_.reserve(buckets_.size());
      updated_ns_.assign(buckets_.size(), 0);
    }
    rounds_.clear();
    context_.group->NoteRounds(steps_begun_++ < kStepsWithRounds ? &rounds_ : nullptr);
    if (context_.clip_norm > 0) sum_of_squares_.Zero(outside());
    return absl::OkStatus();
  }

  void GradientReady(const Bucket& bucket, Event ready) override {
    records_.push_back({.bucket = bucket.index});
    BucketRecord& record = records_.back();
    const HostView gradient = state_.gradient.Slice(bucket.first, bucket.count);

    context_.compute.Stamp(record.ready_ns);
    lane_->WaitFor(ready);
    if (!on_device()) gradient.Download(*lane_);
    if (feedback_.has_value()) Encode(bucket.first, Seen(gradient));
    const Span sent =
        feedback_.has_value() ? feedback_->encoded().Slice(bucket.first, bucket.count) : Seen(gradient);
    lane_->Stamp(record.begin_ns);
    if (absl::Status enqueued = context_.group->AllReduce(sent, sent, ReduceOp::kSum, *lane_);
        !enqueued.ok()) {
      lane_->Run([enqueued] { return enqueued; });
      return;
    }
    lane_->Stamp(record.end_ns);
    if (feedback_.has_value()) Decode(sent, Seen(gradient));
    if (!on_device()) gradient.Upload(*lane_);
    Summed(bucket, records_.size() - 1);
  }

  // In one call of the group's where that is worth it.
  void GradientsReady(absl::Span<const Bucket> buckets, Event ready) override {
    if (buckets.size() < 2 || !context_.group->info().joins_calls || feedback_.has_value()) {
      return SyncStrategy::GradientsReady(buckets, ready);
    }
    const size_t first = records_.size();
    std::vector<Span> gradients;
    lane_->WaitFor(ready);
    for (const Bucket& bucket : buckets) {
      BucketRecord& record = records_.emplace_back(BucketRecord{.bucket = bucket.index});
      gradients.push_back(state_.gradient.device.Slice(bucket.first, bucket.count));
      context_.compute.Stamp(record.ready_ns);
      lane_->Stamp(record.begin_ns);
    }
    if (absl::Status enqueued = context_.group->AllReduceTogether(gradients, ReduceOp::kSum, *lane_);
        !enqueued.ok()) {
      lane_->Run([enqueued] { return enqueued; });
      return;
    }
    for (size_t i = 0; i < buckets.size(); ++i) lane_->Stamp(records_[first + i].end_ns);
    for (size_t i = 0; i < buckets.size(); ++i) Summed(buckets[i], first + i);
  }

  // As float32, which holds any tensor's index exactly.
  absl::StatusOr<bool> AgreeOnOrder(std::vector<int>& ready) override {
    PSRING_ASSIGN_OR_RETURN(const Buffer memory, context_.device.Allocate(ready.size() * sizeof(float)));
    PSRING_ASSIGN_OR_RETURN(const Buffer host_side, AllocateHostSide(context_.device, memory));
    const HostView order = HostView::Of(memory, host_side);
    std::copy(ready.begin(), ready.end(), order.host.floats());
    if (on_device()) order.Upload(*lane_);
    PSRING_RETURN_IF_ERROR(context_.group->Broadcast(Seen(order), /*root=*/0, *lane_));
    if (on_device()) order.Download(*lane_);
    PSRING_RETURN_IF_ERROR(lane_->Synchronize());
    std::copy_n(order.host.floats(), ready.size(), ready.begin());
    return true;
  }

  void Rebuild(std::vector<Bucket> buckets) override { buckets_ = std::move(buckets); }

  bool records_steps() const override { return records_steps_; }

  void FinishBackward() override {
    context_.compute.Stamp(backward_ns_);
    if (records_steps_) context_.compute.WaitFor(lane_->Record());
  }

  absl::StatusOr<StepReport> FinishStep() override {
    if (context_.clip_norm > 0) sum_of_squares_.Download(outside());
    // Both, whatever becomes of one: what they still do needs memory that a failed step gives back.
    const absl::Status summed = lane_->Synchronize(), computed = context_.compute.Synchronize();
    PSRING_RETURN_IF_ERROR(summed);
    PSRING_RETURN_IF_ERROR(computed);
    if (!updates_on_lane_) PSRING_RETURN_IF_ERROR(UpdateAll());
    for (size_t i = 0; i < records_.size(); ++i) {
      const BucketRecord& record = records_[i];
      AddSpan(SpanKind::kCommunication, record.bucket, record.begin_ns, record.end_ns);
      AddRounds(record);
      if (updated_ns_[i] > 0) AddSpan(SpanKind::kOptimizer, record.bucket, record.end_ns, updated_ns_[i]);
    }
    StepReport report{.traffic = context_.group->traffic() - traffic_before_};
    // What came behind the last bucket's arrival was its update, which no rank can do without.
    report.exposed_ns = std::max<int64_t>(0, records_.back().end_ns - backward_ns_);
    report.buckets = records_;  // a recording writes into these again
    return report;
  }

  absl::Status Collect(Span weights) override {
    if (weights.data == state_.weights.device.data) return absl::OkStatus();
    lane_->Copy(weights.data, state_.weights.device.data, weights.bytes());
    return lane_->Synchronize();
  }

  absl::StatusOr<bool> Save(Span weights, const std::vector<Span>& slots) override {
    lane_->Copy(weights.data, state_.weights.device.data, weights.bytes());
    optimizer_.Save(slots, *lane_);
    PSRING_RETURN_IF_ERROR(lane_->Synchronize());
    return true;
  }

  ConstSpan ResidualBefore(int64_t step) const override {
    return feedback_.has_value() ? feedback_->Before(step) : ConstSpan();
  }

  void Abort(absl::Status why) override { context_.group->Abort(std::move(why)); }

 private:
  // Whether the group works where the gradients are; else they go through the host's memory.
  bool on_device() const { return context_.group->info().on_gpu || context_.device.host_reads_memory(); }
  Span Seen(const HostView& view) const { return on_device() ? view.device : view.host; }

  absl::Status Broadcast(const HostView& view) {
    if (!on_device()) view.Download(*lane_);
    PSRING_RETURN_IF_ERROR(context_.group->Broadcast(Seen(view), /*root=*/0, *lane_));
    if (!on_device()) view.Upload(*lane_);
    return absl::OkStatus();
  }

  // A share of the mean over ranks, so that the sum of all stays within what float16 can hold.
  void Encode(size_t first, Span gradient) {
    lane_->Run([this, first, gradient] {
      cpu::Scale(gradient.type, gradient.count, gradient.data, 1 / static_cast<float>(context_.world_size));
      feedback_->Encode(first, gradient);
      return absl::OkStatus();
    });
  }

  void Decode(Span sent, Span gradient) {
    lane_->Run([this, sent, gradient] {
      cpu::Convert(sent.type, sent.data, gradient.type, gradient.data, gradient.count);
      cpu::Scale(gradient.type, gradient.count, gradient.data, static_cast<float>(context_.world_size));
      return absl::OkStatus();
    });
  }

  // What comes behind the sum of a bucket, the `index`-th of the step.
  void Summed(const Bucket& bucket, size_t index) {
    if (context_.clip_norm > 0) {  // updates wait for the norm of all buckets
      lane_ops_->AddSquares(state_.gradient.device.Slice(bucket.first, bucket.count),
                            sum_of_squares_.on_device(), *lane_);
    }
    if (!updates_on_lane_) return;
    Update(bucket, 1, *lane_);
    lane_->Stamp(updated_ns_[index]);
  }

  void Update(const Bucket& bucket, double factor, Stream& stream) {
    optimizer_.Apply(bucket.first, state_.weights.device.Slice(bucket.first, bucket.count),
                     state_.gradient.device.Slice(bucket.first, bucket.count), info_.global_samples, rate_,
                     info_.step + 1, *lane_ops_, stream, factor);
  }

  // Where what is in no recording goes, before and behind the buckets' sums.
  Stream& outside() { return records_steps_ ? context_.compute : *lane_; }

  // Behind all sums: every rank has the same, and so the same norm.
  absl::Status UpdateAll() {
    double factor = 1;
    if (context_.clip_norm > 0) {
      PSRING_ASSIGN_OR_RETURN(
          factor, ClipFactor(context_.clip_norm, sum_of_squares_.on_host(), info_.global_samples));
    }
    int64_t begin = 0, end = 0;
    outside().Stamp(begin);
    for (const Bucket& bucket : buckets_) Update(bucket, factor, outside());
    outside().Stamp(end);
    PSRING_RETURN_IF_ERROR(outside().Synchronize());
    AddSpan(SpanKind::kOptimizer, -1, begin, end);
    return absl::OkStatus();
  }

  void AddSpan(SpanKind kind, int bucket, int64_t begin, int64_t end) {
    context_.trace.Add(
        {.kind = kind, .step = info_.step, .bucket = bucket, .begin_ns = begin, .end_ns = end});
  }

  // The lane moves one bucket after the other.
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

  const StrategyContext context_;
  std::vector<Bucket> buckets_;
  const Optimizer optimizer_;
  std::optional<ErrorFeedback> feedback_;     // where gradients travel in 16 bits
  const std::unique_ptr<Ops> lane_ops_;       // the compute thread is busy with its own
  const DeviceValue<double> sum_of_squares_;  // of the summed gradient; clipping
  TrainingState state_;
  StepInfo info_;
  double rate_ = 0;
  Traffic traffic_before_;
  int64_t steps_begun_ = 0;
  const bool records_steps_;
  const bool updates_on_lane_;  // each behind its bucket's sum
  // Streams write into these until they are synchronised.
  int64_t backward_ns_ = 0;  // backward was done
  std::vector<BucketRecord> records_;
  std::vector<int64_t> updated_ns_;  // beside records_
  std::vector<RoundTime> rounds_;
  const std::unique_ptr<Stream> lane_;  // last: its work uses the above
};

}  // namespace

absl::StatusOr<std::unique_ptr<SyncStrategy>> MakeAllReduce(const StrategyContext& context) {
  // A ring of one has nothing to send, and a lane would only cost.
  if (context.world_size == 1) return MakeNone(context);
  PSRING_CHECK(context.group != nullptr && context.group->size() == context.world_size);
  size_t count = 0;
  for (const Bucket& bucket : context.buckets) count += bucket.count;
  PSRING_ASSIGN_OR_RETURN(Optimizer optimizer, Optimizer::Create(context.optimizer, context.device, count));
  PSRING_ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops, MakeOps(context.device, context.threads));
  std::optional<ErrorFeedback> feedback;
  if (context.wire != DType::kFloat32) {
    if (context.group->info().on_gpu) {
      return absl::InvalidArgumentError(
          "--wire in 16 bits rounds on the host, and between GPUs NCCL moves gradients past it; leave it "
          "out, or "
          "give --backend native");
    }
    const std::unique_ptr<Device> host = MakeCpuDevice();
    PSRING_ASSIGN_OR_RETURN(feedback, ErrorFeedback::Create(context.wire, count, /*shared=*/false, *host));
  }
  PSRING_ASSIGN_OR_RETURN(DeviceValue<double> sum_of_squares, DeviceValue<double>::Create(context.device));
  return std::make_unique<AllReduceStrategy>(context, std::move(optimizer), std::move(ops),
                                             std::move(feedback), std::move(sum_of_squares));
}

}  // namespace psring
