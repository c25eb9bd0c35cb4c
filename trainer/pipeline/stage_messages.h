// The messages between the stages of a pipeline, and the sums of tensors that two stages share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/device/device.h"
#include "ring_worker/groups/channel.h"
#include "ring_worker/groups/process_group.h"
#include "trainer/models/model.h"
#include "trainer/pipeline/message_times.h"
#include "trainer/pipeline/model_part.h"
#include "trainer/pipeline/pipeline.h"
#include "trainer/pipeline/rank_plan.h"
#include "trainer/pipeline/replica_exchange.h"

namespace psring {

// Of one rank. Each channel end is a lane of its own, so a message does not keep computation or other
// messages from going on, or all are one lane (--copy_streams 1). Used by the training thread.
class StageMessages {
 public:
  // `pipeline` and its channels, `part` and `device` outlive it. `warmup_steps`: see MessageTimes.
  StageMessages(const Pipeline& pipeline, const ModelPart& part, int micro_batches, int64_t warmup_steps,
                Device& device);

  // Of a message or a tied reduction.
  Stream& LaneFor(const StepAction& action) const;
  // Both enqueue on that lane. `edges`: of the action's stage and micro-batch.
  absl::Status Transfer(const StepAction& action, const StageEdges& edges) const;
  absl::Status ReduceTied(Span gradient) const;
  // Waits for the lanes.
  absl::Status Finish();

  // Collective over the ranks of the replica, after the same step of all: see MessageTimes. `times` of the
  // nodes, 0 for messages that were not sent; `samples` of each micro-batch.
  absl::Status ShareTimes(ReplicaExchange& replica, const std::vector<PlannedNode>& nodes,
                          const std::vector<NodeTime>& times, const std::vector<int>& samples);
  // How long a message's bytes took, which this rank measured at `time`, with its waiting.
  int64_t TransferNs(const StepAction& message, int samples, const NodeTime& time) const;

  Traffic traffic() const;

 private:
  struct Channels {
    Channel *activations, *gradients;
  };

  size_t IndexOf(const StepAction& message) const;
  Channel& ChannelOf(const StepAction& message) const;

  const ModelPart& part_;
  const size_t micro_batches_;
  std::map<size_t, Channels> channels_;  // by boundary
  ProcessGroup* const tied_;             // null: this rank has no tied tensors, or all stages that share them
  MessageTimes times_;
  std::unique_ptr<Stream> tied_lane_;
};

}  // namespace psring
