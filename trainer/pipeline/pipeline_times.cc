// When a pipeline's step computed and waited.
#include <algorithm>
#include <vector>

#include "trainer/pipeline/pipeline_executor.h"
#include "trainer/programs/walk_program.h"

namespace psring {

absl::Status PipelineExecutor::ShareMessageTimes(ReplicaExchange& replica) {
  const size_t boundaries = static_cast<size_t>(place().stages()) - 1;
  std::vector<MessageEnds> own(2 * boundaries * static_cast<size_t>(parts_.micro_batches));
  for (size_t i = 0; i < step_.nodes.size(); ++i) {
    const StepAction& action = step_.nodes[i].action;
    if (LaneOf(action.kind) != StepLane::kMessages || SamplesOf(action) == 0) continue;
    MessageEnds& ends = own[MessageOf(action)];
    (IsReceive(action.kind) ? ends.receive : ends.send) = times_[i];
  }
  return message_times_.Share(replica, static_cast<int>(parts_.part.parts.size()), own, sizes_);
}

PipelineExecutor::StepTimes PipelineExecutor::Times() const {
  StepTimes times;
  int64_t busy_until_ns = begin_ns_;
  const StepAction* previous = nullptr;  // computation
  for (size_t i = 0; i < step_.nodes.size(); ++i) {
    const StepAction& action = step_.nodes[i].action;
    const auto [begin, end] = times_[i];
    if (action.kind == StepKind::kReshard) continue;
    if (!RunsOnCompute(action.kind)) {
      if (LaneOf(action.kind) != StepLane::kMessages || SamplesOf(action) == 0) continue;
      const int64_t bytes_ns = message_times_.Of(MessageOf(action), SamplesOf(action), end - begin);
      times.messages.push_back({action, {end - bytes_ns, end}});
      continue;
    }
    if (!step_.nodes[i].after.empty()) {
      int64_t bytes_ns = 0;
      for (const size_t before : step_.nodes[i].after) {
        const StepAction& awaited = step_.nodes[before].action;
        if (!IsReceive(awaited.kind) || SamplesOf(awaited) == 0) continue;
        const int64_t measured_ns = times_[before].end_ns - times_[before].begin_ns;
        bytes_ns = std::max(bytes_ns, message_times_.Of(MessageOf(awaited), SamplesOf(awaited), measured_ns));
      }
      const int64_t exposed_from_ns = std::max(busy_until_ns, begin - bytes_ns);
      if (exposed_from_ns > busy_until_ns) times.bubbles.push_back({busy_until_ns, exposed_from_ns});
      if (begin > exposed_from_ns) times.exposed.push_back({exposed_from_ns, begin});
    }
    busy_until_ns = std::max(busy_until_ns, end);
    if (LaneOf(action.kind) != StepLane::kCompute) continue;
    times.compute_ns += end - begin;
    // The units of a pass follow one another.
    if (previous != nullptr && previous->kind == action.kind && previous->stage == action.stage &&
        previous->micro_batch == action.micro_batch) {
      times.passes.back().time.end_ns = end;
    } else {
      times.passes.push_back({action, {begin, end}});
      times.passes.back().action.unit = -1;
    }
    previous = &action;
  }
  if (!flushes()) {
    times.exposed.insert(times.exposed.end(), updates_->exposed().begin(), updates_->exposed().end());
  }
  return times;
}

}  // namespace psring
