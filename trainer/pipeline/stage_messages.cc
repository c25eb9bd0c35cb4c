#include "trainer/pipeline/stage_messages.h"

#include "common/base/check.h"

namespace psring {
namespace {

// Twice the boundary that a message crosses, and 1 more for gradients.
size_t LinkOf(const StepAction& message) {
  const bool before = message.kind == StepKind::kReceiveActivation || message.kind == StepKind::kSendGradient;
  const bool of_activation =
      message.kind == StepKind::kSendActivation || message.kind == StepKind::kReceiveActivation;
  return 2 * static_cast<size_t>(message.stage - (before ? 1 : 0)) + (of_activation ? 0 : 1);
}

}  // namespace

StageMessages::StageMessages(const Pipeline& pipeline, const ModelPart& part, int micro_batches,
                             int64_t warmup_steps, Device& device)
    : part_(part),
      micro_batches_(static_cast<size_t>(micro_batches)),
      tied_(pipeline.tied),
      times_(part.place.stages() - 1, micro_batches, warmup_steps) {
  for (const Pipeline::Boundary& at : pipeline.boundaries) {
    channels_[static_cast<size_t>(at.boundary)] = {at.activations, at.gradients};
  }
  if (part.tied.empty()) return;
  PSRING_CHECK(tied_ != nullptr);
  tied_lane_ = device.NewStream(StreamKind::kBackground, "tied");
}

// Of boundary b and micro-batch m as in TransferTimes.
size_t StageMessages::IndexOf(const StepAction& message) const {
  return LinkOf(message) * micro_batches_ + static_cast<size_t>(message.micro_batch);
}

Channel& StageMessages::ChannelOf(const StepAction& message) const {
  const size_t link = LinkOf(message);
  const Channels& channels = channels_.at(link / 2);
  return link % 2 == 0 ? *channels.activations : *channels.gradients;
}

Stream& StageMessages::LaneFor(const StepAction& action) const {
  return action.kind == StepKind::kReduceTied ? *tied_lane_ : ChannelOf(action).lane();
}

absl::Status StageMessages::Transfer(const StepAction& action, const StageEdges& edges) const {
  switch (action.kind) {
    case StepKind::kSendActivation:
      return ChannelOf(action).Transfer(edges.output);
    case StepKind::kReceiveActivation:
      return ChannelOf(action).Transfer(edges.input);
    case StepKind::kSendGradient:
      return ChannelOf(action).Transfer(edges.input_gradient);
    default:
      return ChannelOf(action).Transfer(edges.output_gradient);
  }
}

// Begins when the gradient is complete on both ranks.
absl::Status StageMessages::ReduceTied(Span gradient) const {
  return tied_->AllReduce(gradient, gradient, ReduceOp::kSum, *tied_lane_);
}

absl::Status StageMessages::Finish() {
  absl::Status status;
  for (const auto& [boundary, ends] : channels_) {
    status.Update(ends.activations->lane().Synchronize());
    status.Update(ends.gradients->lane().Synchronize());
  }
  if (tied_lane_ != nullptr) status.Update(tied_lane_->Synchronize());
  return status;
}

absl::Status StageMessages::ShareTimes(ReplicaExchange& replica, const std::vector<PlannedNode>& nodes,
                                       const std::vector<NodeTime>& times, const std::vector<int>& samples) {
  const size_t boundaries = static_cast<size_t>(part_.place.stages()) - 1;
  std::vector<MessageEnds> own(2 * boundaries * micro_batches_);
  for (size_t i = 0; i < nodes.size(); ++i) {
    const StepAction& action = nodes[i].action;
    if (LaneOf(action.kind) != StepLane::kMessages) continue;
    if (samples[static_cast<size_t>(action.micro_batch)] == 0) continue;
    MessageEnds& ends = own[IndexOf(action)];
    (IsReceive(action.kind) ? ends.receive : ends.send) = times[i];
  }
  return times_.Share(replica, static_cast<int>(part_.parts.size()), own, samples);
}

int64_t StageMessages::TransferNs(const StepAction& message, int samples, const NodeTime& time) const {
  return times_.Of(IndexOf(message), samples, time.end_ns - time.begin_ns);
}

Traffic StageMessages::traffic() const {
  Traffic all;
  for (const auto& [boundary, ends] : channels_) {
    all = all + ends.activations->traffic() + ends.gradients->traffic();
  }
  return tied_ != nullptr ? all + tied_->traffic() : all;
}

}  // namespace psring
