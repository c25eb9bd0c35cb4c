#include "trainer/pipeline/pipeline_plan.h"

#include <deque>
#include <map>
#include <utility>

namespace psring {
namespace {

bool IsSend(StepKind kind) { return kind == StepKind::kSendActivation || kind == StepKind::kSendGradient; }

// Indices of `nodes`.
std::vector<size_t> OrderOf(const std::vector<StepNode>& nodes) {
  std::vector<size_t> order;
  size_t receives = 0;  // where the next one goes: before the last computation, after other receives
  for (size_t i = 0; i < nodes.size(); ++i) {
    const StepKind kind = nodes[i].action.kind;
    if (IsReceive(kind)) {
      order.insert(order.begin() + static_cast<std::ptrdiff_t>(receives++), i);
      continue;
    }
    if (LaneOf(kind) == StepLane::kCompute) receives = order.size();
    order.push_back(i);
  }
  return order;
}

}  // namespace

bool RunsOnCompute(StepKind kind) {
  return LaneOf(kind) != StepLane::kMessages && kind != StepKind::kReduceTied;
}

bool IsReceive(StepKind kind) {
  return kind == StepKind::kReceiveActivation || kind == StepKind::kReceiveGradient;
}

PipelinePlan PlanPipeline(const std::vector<StepNode>& nodes) {
  PipelinePlan plan;
  const std::vector<size_t> order = OrderOf(nodes);
  std::vector<size_t> place(nodes.size());  // in the plan
  std::map<int, int> computations_left;     // by micro-batch
  size_t last_computation = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (LaneOf(nodes[i].action.kind) != StepLane::kCompute) continue;
    ++computations_left[nodes[i].action.micro_batch];
    last_computation = i;
  }
  std::map<int, size_t> slots;             // by micro-batch
  std::deque<size_t> free;                 // the one that has been free longest first
  std::vector<std::vector<size_t>> sends;  // by slot: of the micro-batch that has it
  for (const size_t i : order) {
    const StepAction& action = nodes[i].action;
    place[i] = plan.nodes.size();
    PipelineNode& node = plan.nodes.emplace_back(PipelineNode{.action = action});
    for (const int before : nodes[i].after) {
      const StepKind other = nodes[static_cast<size_t>(before)].action.kind;
      if (RunsOnCompute(action.kind) && RunsOnCompute(other)) continue;
      // The buckets of tied tensors are the last ones. Other reductions need not wait for these tensors, and
      // the compute stream must not: the other rank may need what is computed next.
      if (other == StepKind::kReduceTied && i < last_computation) continue;
      node.after.push_back(place[static_cast<size_t>(before)]);
    }
    if (action.micro_batch < 0) continue;
    if (const auto has = slots.find(action.micro_batch); has != slots.end()) {
      node.slot = has->second;
    } else if (free.empty()) {
      node.slot = slots[action.micro_batch] = plan.slots++;
      sends.emplace_back();
    } else {
      node.slot = slots[action.micro_batch] = free.front();
      free.pop_front();
      const std::vector<size_t> pending = std::exchange(sends[node.slot], {});
      node.after.insert(node.after.end(), pending.begin(), pending.end());
    }
    if (IsSend(action.kind)) sends[node.slot].push_back(place[i]);
    if (LaneOf(action.kind) == StepLane::kCompute && --computations_left[action.micro_batch] == 0) {
      free.push_back(node.slot);
    }
  }
  return plan;
}

StepProgram ForwardOnly(StepProgram compute) {
  for (std::vector<StepAction>& actions : compute.actions) {
    std::erase_if(actions, [](const StepAction& action) { return action.kind != StepKind::kForward; });
  }
  return compute;
}

}  // namespace psring
