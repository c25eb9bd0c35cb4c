// When the actions of a step computed, waited and sent, as measured on one rank.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/pipeline/rank_plan.h"
#include "trainer/pipeline/stage_messages.h"
#include "trainer/programs/walk_program.h"

namespace psring {

// Waiting for a message is `exposed` for the time that its bytes take (message_times.h). What is before it,
// in which the other stage had nothing to send yet, is in `bubbles`, and so is waiting for a free slot.
struct RankTimes {
  std::vector<TimedAction> passes;    // of a stage and micro-batch
  std::vector<TimedAction> units;     // within passes; may be empty
  std::vector<TimedAction> messages;  // begin and end of the bytes
  std::vector<NodeTime> bubbles, exposed;
  int64_t compute_ns = 0;
};

// Of a pipeline's step, without units. `measured`: the times of the nodes; `samples` of each micro-batch;
// `begin_ns`: when the compute stream was free for the first node. After StageMessages::ShareTimes.
RankTimes PipelineTimes(const std::vector<PlannedNode>& nodes, const std::vector<NodeTime>& measured,
                        const std::vector<int>& samples, int64_t begin_ns, const StageMessages& messages);

}  // namespace psring
