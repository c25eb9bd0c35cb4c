#include "trainer/strategies/group_strategy.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/device_factory/make_ops.h"
#include "common/kernels/reduce.h"

namespace psring {

absl::StatusOr<WireCodec> WireCodec::Create(DType wire, size_t count, const GroupInfo& group) {
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

Span WireCodec::Encode(size_t first, Span gradient, Stream& stream) {
  if (!rounds()) return gradient;
  stream.Run([this, first, gradient] {
    cpu::Scale(gradient.type, gradient.count, gradient.data, 1 / ranks_);
    feedback_->Encode(first, gradient);
    return absl::OkStatus();
  });
  return feedback_->encoded().Slice(first, gradient.count);
}

void WireCodec::Decode(Span sent, Span gradient, Stream& stream) {
  if (!rounds()) return;
  stream.Run([this, sent, gradient] {
    cpu::Convert(sent.type, sent.data, gradient.type, gradient.data, gradient.count);
    cpu::Scale(gradient.type, gradient.count, gradient.data, ranks_);
    return absl::OkStatus();
  });
}

absl::StatusOr<GroupStrategy::Parts> GroupStrategy::PartsOf(const StrategyContext& context,
                                                            const std::vector<ParameterRange>& own) {
  PSRING_CHECK(context.group != nullptr && context.group->size() == context.world_size);
  size_t count = 0;
  for (const Bucket& bucket : context.buckets) count += bucket.count;
  PSRING_ASSIGN_OR_RETURN(LocalUpdate update, LocalUpdate::Create(context, own));
  PSRING_ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops, MakeOps(context.device, context.threads));
  PSRING_ASSIGN_OR_RETURN(WireCodec codec, WireCodec::Create(context.wire, count, context.group->info()));
  return Parts{std::move(update), std::move(ops), std::move(codec)};
}

GroupStrategy::GroupStrategy(const StrategyContext& context, Parts parts)
    : context_(context),
      group_(*context.group),
      staging_(context.device, group_),
      codec_(std::move(parts.codec)),
      update_(std::move(parts.update)),
      lane_ops_(std::move(parts.lane_ops)),
      updates_on_lane_(!update_.clips() && (!context.records_steps || update_.repeats())),
      // A group whose calls can be recorded only enqueues, so that it needs no thread.
      lane_(context.device.NewStream(context.records_steps ? StreamKind::kCompute : StreamKind::kBackground,
                                     "synchronize")) {}

absl::Status GroupStrategy::ShareWeights(const TrainingState& state) {
  update_.Start(state);
  if (codec_.rounds() && state.residual.count > 0) codec_.feedback().Load(state.residual);
  return staging_.Broadcast(state.weights, *lane_);
}

absl::Status GroupStrategy::BeginStep(const StepInfo& info) {
  info_ = info;
  if (codec_.rounds()) codec_.feedback().BeginStep(info.step);
  update_.BeginStep(info, info.global_samples);
  traffic_before_ = TrafficSoFar();
  // The lane writes into them, so they must not move.
  if (!info.is_repeated) {
    const size_t exchanges = context_.buckets.size() * static_cast<size_t>(context_.reductions);
    records_.clear();
    records_.reserve(exchanges);
    updates_.assign(exchanges, {});
  }
  update_.BeginNorm(outside());
  return BroadcastBuffers();
}

// Before forward, as DDP does.
absl::Status GroupStrategy::BroadcastBuffers() {
  const HostView& buffers = update_.state().buffers;
  if (buffers.device.count == 0) return absl::OkStatus();
  outside().WaitFor(context_.compute.Record());
  outside().Stamp(buffers_begin_ns_);
  PSRING_RETURN_IF_ERROR(staging_.Broadcast(buffers, outside()));
  outside().Stamp(buffers_arrived_ns_);
  context_.compute.WaitFor(outside().Record());
  return absl::OkStatus();
}

Span GroupStrategy::BeginExchange(const Bucket& bucket, const HostView& gradient, const Event& ready) {
  BucketRecord& record = records_.emplace_back(BucketRecord{.bucket = bucket.index});
  context_.compute.Stamp(record.ready_ns);
  lane_->WaitFor(ready);
  staging_.ToGroup(gradient, *lane_);
  const Span sent = codec_.Encode(bucket.first, staging_.Seen(gradient), *lane_);
  lane_->Stamp(record.begin_ns);
  return sent;
}

void GroupStrategy::TakeSum(const HostView& gradient, Span sent) {
  codec_.Decode(sent, staging_.Seen(gradient), *lane_);
  staging_.FromGroup(gradient, *lane_);
}

bool GroupStrategy::Enqueued(const absl::Status& status) {
  if (!status.ok()) lane_->Run([status] { return status; });
  return status.ok();
}

absl::StatusOr<StepReport> GroupStrategy::FinishStep() {
  if (!context_.records_steps) context_.compute.Stamp(backward_ns_);
  update_.EndNorm(outside());
  // Wait for both even if one fails: their work uses memory that a failed step releases.
  const absl::Status exchanged = lane_->Synchronize(), computed = context_.compute.Synchronize();
  PSRING_RETURN_IF_ERROR(exchanged);
  PSRING_RETURN_IF_ERROR(computed);
  if (!updates_on_lane_) PSRING_RETURN_IF_ERROR(UpdateAll());
  for (size_t i = 0; i < records_.size(); ++i) {
    AddSpan(SpanKind::kCommunication, records_[i].bucket, records_[i].begin_ns, records_[i].end_ns);
    const auto [begin_ns, end_ns] = updates_[i];
    if (end_ns > 0) AddSpan(SpanKind::kOptimizer, records_[i].bucket, begin_ns, end_ns);
  }
  StepReport report{.traffic = TrafficSoFar() - traffic_before_};
  // An update after the last bucket's arrival is not communication.
  if (!records_.empty()) report.exposed_ns = std::max<int64_t>(0, records_.back().end_ns - backward_ns_);
  report.exposed_ns += buffers_arrived_ns_ - buffers_begin_ns_;
  report.buckets = records_;  // a copy: a recording writes into records_ again
  return report;
}

}  // namespace psring
