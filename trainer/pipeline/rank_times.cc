#include "trainer/pipeline/rank_times.h"

#include <algorithm>

namespace psring {

RankTimes PipelineTimes(const std::vector<PlannedNode>& nodes, const std::vector<NodeTime>& measured,
                        const std::vector<int>& samples, int64_t begin_ns, const StageMessages& messages) {
  RankTimes times;
  // 0: an empty micro-batch, which is not sent.
  const auto samples_of = [&](const StepAction& action) {
    return samples[static_cast<size_t>(action.micro_batch)];
  };
  int64_t busy_until_ns = begin_ns;
  const StepAction* previous = nullptr;  // computation
  for (size_t i = 0; i < nodes.size(); ++i) {
    const StepAction& action = nodes[i].action;
    const auto [begin, end] = measured[i];
    if (action.kind == StepKind::kReshard) continue;
    if (!RunsOnCompute(action.kind)) {
      if (LaneOf(action.kind) != StepLane::kMessages || samples_of(action) == 0) continue;
      const int64_t bytes_ns = messages.TransferNs(action, samples_of(action), measured[i]);
      times.messages.push_back({action, {end - bytes_ns, end}});
      continue;
    }
    if (!nodes[i].after.empty()) {
      int64_t bytes_ns = 0;
      for (const size_t before : nodes[i].after) {
        const StepAction& awaited = nodes[before].action;
        if (!IsReceive(awaited.kind) || samples_of(awaited) == 0) continue;
        bytes_ns = std::max(bytes_ns, messages.TransferNs(awaited, samples_of(awaited), measured[before]));
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
  return times;
}

}  // namespace psring
