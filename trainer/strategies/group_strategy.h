// What the strategies share that exchange gradients through a process group, bucket by bucket, on a separate
// stream (the lane), while backward computes the next bucket.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/ops/ops.h"
#include "ring_worker/groups/process_group.h"
#include "trainer/strategies/error_feedback.h"
#include "trainer/strategies/local_update.h"
#include "trainer/strategies/staging.h"
#include "trainer/strategies/strategies.h"

namespace psring {

// Gradients in their type on the wire: --wire. Float32 gradients are sent as they are. For 16 bits each
// rank's gradient is divided by the number of ranks first, so that the sum does not overflow float16, and
// rounding errors are kept for the next step.
class WireCodec {
 public:
  // For gradients of `count` elements. InvalidArgument: 16 bits, and the group works on GPU memory.
  static absl::StatusOr<WireCodec> Create(DType wire, size_t count, const GroupInfo& group);

  bool rounds() const { return feedback_.has_value(); }
  // Only if it rounds.
  ErrorFeedback& feedback() { return *feedback_; }
  const ErrorFeedback& feedback() const { return *feedback_; }

  // Both work in stream order, and this object must exist until then. Encode returns what to send for
  // `gradient`, elements from `first` on, in host memory if it is rounded. Decode turns what was received in
  // its place, or in a part of it, into the sum over all ranks.
  Span Encode(size_t first, Span gradient, Stream& stream);
  void Decode(Span sent, Span gradient, Stream& stream);

 private:
  explicit WireCodec(int ranks) : ranks_(static_cast<float>(ranks)) {}

  float ranks_;
  std::optional<ErrorFeedback> feedback_;
};

// A derived class exchanges the buckets in GradientReady. Its destructor resets lane_, whose queued work may
// use its members.
class GroupStrategy : public SyncStrategy, public Residuals {
 public:
  struct Parts {
    LocalUpdate update;
    std::unique_ptr<Ops> lane_ops;
    WireCodec codec;
  };
  // `own`: see LocalUpdate::Create.
  static absl::StatusOr<Parts> PartsOf(const StrategyContext& context,
                                       const std::vector<ParameterRange>& own = {});

  absl::Status BeginStep(const StepInfo& info) override;
  absl::StatusOr<StepReport> FinishStep() override;
  absl::Status Collect(Span weights) override { return update_.CopyWeights(weights, *lane_); }
  size_t state_bytes() const override { return update_.optimizer().bytes(); }
  void Abort(absl::Status why) override { group_.Abort(std::move(why)); }
  ConstSpan ResidualBefore(int64_t step) const override { return codec_.feedback().Before(step); }
  bool rounds() const { return codec_.rounds(); }

 protected:
  GroupStrategy(const StrategyContext& context, Parts parts);

  // For Start: rank 0's weights to every rank, on the lane; this rank's residual.
  absl::Status ShareWeights(const TrainingState& state);

  HostView GradientOf(const Bucket& range) const {
    return update_.state().gradient.Slice(range.first, range.count);
  }
  // Begins the exchange of a bucket, whose gradient this is and whose record is the last of records_; returns
  // what to send.
  Span BeginExchange(const Bucket& bucket, const HostView& gradient, const Event& ready);
  // `sent` has become the sum of these elements of the gradient.
  void TakeSum(const HostView& gradient, Span sent);
  // An error surfaces at the lane's Synchronize.
  bool Enqueued(const absl::Status& status);

  // If !updates_on_lane_: the update of all buckets, after their exchange and that of the norm.
  virtual absl::Status UpdateAll() = 0;

  // Of all groups, so far.
  virtual Traffic TrafficSoFar() const { return group_.traffic(); }

  // The stream for work that is in no recording.
  Stream& outside() { return context_.records_steps ? context_.compute : *lane_; }
  void AddSpan(SpanKind kind, int bucket, int64_t begin, int64_t end) {
    context_.trace.Add(
        {.kind = kind, .step = info_.step, .bucket = bucket, .begin_ns = begin, .end_ns = end});
  }

  const StrategyContext context_;
  ProcessGroup& group_;
  const Staging staging_;
  WireCodec codec_;
  LocalUpdate update_;
  const std::unique_ptr<Ops> lane_ops_;  // the compute thread uses its own
  const bool updates_on_lane_;           // each after its bucket's exchange; else all at the end
  StepInfo info_;
  // Streams write into these until they are synchronized.
  int64_t backward_ns_ = 0;  // backward was done
  std::vector<BucketRecord> records_;
  std::vector<std::pair<int64_t, int64_t>> updates_;  // begin and end, parallel to records_

 private:
  absl::Status BroadcastBuffers();

  Traffic traffic_before_;
  int64_t buffers_begin_ns_ = 0, buffers_arrived_ns_ = 0;  // likewise written by streams

 protected:
  std::unique_ptr<Stream> lane_;  // last: its work uses the above
};

}  // namespace psring
