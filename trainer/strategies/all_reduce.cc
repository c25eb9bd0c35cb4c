// The gradients are summed over all ranks in place, bucket by bucket, on a background lane; the lane then
// makes the bucket's update, the same on every rank.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/gradient_norm.h"
#include "common/reduce.h"
#include "ring_worker/process_group.h"
#include "trainer/error_feedback.h"
#include "trainer/strategies/strategies.h"

namespace psring {
namespace {

class AllReduceStrategy : public SyncStrategy {
 public:
  AllReduceStrategy(const StrategyContext& context, Optimizer optimizer, std::unique_ptr<Ops> lane_ops,
                    std::optional<ErrorFeedback> feedback)
      : context_(context),
        buckets_(context.buckets),
        optimizer_(std::move(optimizer)),
        feedback_(std::move(feedback)),
        lane_ops_(std::move(lane_ops)),
        lane_(context.device.NewStream(StreamKind::kBackground, "synchronise")) {}

  absl::Status Start(const TrainingState& state) override {
    state_ = state;
    PSRING_RETURN_IF_ERROR(context_.group->Broadcast(state_.weights, /*root=*/0, *lane_));
    if (state.has_slots) {
      if (context_.rank == 0) optimizer_.Load(state.slots, *lane_);
      for (const Span& slot : optimizer_.slots()) {
        PSRING_RETURN_IF_ERROR(context_.group->Broadcast(slot, /*root=*/0, *lane_));
      }
    }
    return lane_->Synchronize();
  }

  absl::Status BeginStep(const StepInfo& info) override {
    info_ = info;
    rate_ = LearningRate(context_.schedule, info.global_samples_before);
    traffic_before_ = context_.group->traffic();
    // The lane writes into it, so it must not move.
    records_.clear();
    sum_of_squares_ = 0;
    records_.reserve(buckets_.size());
    return absl::OkStatus();
  }

  void GradientReady(const Bucket& bucket, Event ready) override {
    records_.push_back({.bucket = bucket.index, .ready_ns = context_.trace.Now()});
    BucketRecord& record = records_.back();
    const Span gradient = state_.gradient.Slice(bucket.first, bucket.count);

    lane_->WaitFor(ready);
    if (feedback_.has_value()) Encode(bucket.first, gradient);
    const Span sent =
        feedback_.has_value() ? feedback_->encoded().Slice(bucket.first, bucket.count) : gradient;
    Stamp(record.begin_ns);
    if (absl::Status enqueued = context_.group->AllReduce(sent, sent, ReduceOp::kSum, *lane_);
        !enqueued.ok()) {
      lane_->Run([enqueued] { return enqueued; });
      return;
    }
    Stamp(record.end_ns);
    if (feedback_.has_value()) Decode(sent, gradient);
    if (context_.clip_norm > 0) {  // updates wait for the norm of all buckets
      lane_->Run([this, &record, gradient] {
        AddSpan(SpanKind::kCommunication, record.bucket, record.begin_ns, record.end_ns);
        sum_of_squares_ += SumOfSquares(gradient.floats(), gradient.count);
        return absl::OkStatus();
      });
      return;
    }
    Update(bucket, 1);
    lane_->Run([this, &record] {
      AddSpan(SpanKind::kCommunication, record.bucket, record.begin_ns, record.end_ns);
      AddSpan(SpanKind::kOptimizer, record.bucket, record.end_ns, context_.trace.Now());
      return absl::OkStatus();
    });
  }

  // As float32, which holds any tensor's index exactly.
  absl::StatusOr<bool> AgreeOnOrder(std::vector<int>& ready) override {
    PSRING_ASSIGN_OR_RETURN(const Buffer order, context_.device.Allocate(ready.size() * sizeof(float)));
    std::vector<float> indices(ready.begin(), ready.end());
    lane_->Copy(order.data(), indices.data(), order.bytes());
    PSRING_RETURN_IF_ERROR(context_.group->Broadcast(order.span(), /*root=*/0, *lane_));
    lane_->Copy(indices.data(), order.data(), order.bytes());
    PSRING_RETURN_IF_ERROR(lane_->Synchronize());
    ready.assign(indices.begin(), indices.end());
    return true;
  }

  void Rebuild(std::vector<Bucket> buckets) override { buckets_ = std::move(buckets); }

  absl::StatusOr<StepReport> FinishStep() override {
    const int64_t begin = context_.trace.Now();
    PSRING_RETURN_IF_ERROR(lane_->Synchronize());
    if (context_.clip_norm > 0) PSRING_RETURN_IF_ERROR(UpdateClipped());
    StepReport report{.traffic = context_.group->traffic() - traffic_before_};
    // What came behind the last bucket's arrival was its update, which no rank can do without.
    report.exposed_ns = std::max<int64_t>(0, records_.back().end_ns - begin);
    report.buckets = std::move(records_);
    return report;
  }

  absl::Status Collect(Span weights) override {
    if (weights.data == state_.weights.data) return absl::OkStatus();
    lane_->Copy(weights.data, state_.weights.data, weights.bytes());
    return lane_->Synchronize();
  }

  absl::StatusOr<bool> Save(Span weights, const std::vector<Span>& slots) override {
    lane_->Copy(weights.data, state_.weights.data, weights.bytes());
    optimizer_.Save(slots, *lane_);
    PSRING_RETURN_IF_ERROR(lane_->Synchronize());
    return true;
  }

  void Abort(absl::Status why) override { context_.group->Abort(std::move(why)); }

 private:
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

  void Update(const Bucket& bucket, double factor) {
    optimizer_.Apply(bucket.first, state_.weights.Slice(bucket.first, bucket.count),
                     state_.gradient.Slice(bucket.first, bucket.count), info_.global_samples, rate_,
                     info_.step + 1, *lane_ops_, *lane_, factor);
  }

  // Every rank has the same sums, and so the same norm.
  absl::Status UpdateClipped() {
    const int64_t begin = context_.trace.Now();
    PSRING_ASSIGN_OR_RETURN(const double factor,
                            ClipFactor(context_.clip_norm, sum_of_squares_, info_.global_samples));
    for (const Bucket& bucket : buckets_) Update(bucket, factor);
    PSRING_RETURN_IF_ERROR(lane_->Synchronize());
    AddSpan(SpanKind::kOptimizer, -1, begin, context_.trace.Now());
    return absl::OkStatus();
  }

  // The moment at which the lane gets here, into `ns`.
  void Stamp(int64_t& ns) {
    lane_->Run([this, &ns] {
      ns = context_.trace.Now();
      return absl::OkStatus();
    });
  }

  void AddSpan(SpanKind kind, int bucket, int64_t begin, int64_t end) {
    context_.trace.Add(
        {.kind = kind, .step = info_.step, .bucket = bucket, .begin_ns = begin, .end_ns = end});
  }

  const StrategyContext context_;
  std::vector<Bucket> buckets_;
  const Optimizer optimizer_;
  std::optional<ErrorFeedback> feedback_;  // where gradients travel in 16 bits
  const std::unique_ptr<Ops> lane_ops_;    // the compute thread is busy with its own
  TrainingState state_;
  StepInfo info_;
  double rate_ = 0;
  double sum_of_squares_ = 0;  // the lane's; clipping
  Traffic traffic_before_;
  std::vector<BucketRecord> records_;
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
    PSRING_ASSIGN_OR_RETURN(feedback,
                            ErrorFeedback::Create(context.wire, count, /*shared=*/false, context.device));
  }
  return std::make_unique<AllReduceStrategy>(context, std::move(optimizer), std::move(ops),
                                             std::move(feedback));
}

}  // namespace psring
