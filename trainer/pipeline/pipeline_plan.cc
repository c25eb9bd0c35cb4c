#include "trainer/pipeline/pipeline_plan.h"

#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <utility>

namespace psring {
namespace {

bool IsSend(StepKind kind) { return kind == StepKind::kSendActivation || kind == StepKind::kSendGradient; }

// Beside what fills a slot first.
bool UsesSlot(StepKind kind) { return LaneOf(kind) == StepLane::kCompute || IsSend(kind); }

// Messages and gatherings.
bool IsTransfer(const StepNode& node) {
  return LaneOf(node.action.kind) == StepLane::kMessages || node.action.kind == StepKind::kUnshard;
}

// Indices of `nodes` in the order in which they are enqueued: transfers as soon as what they wait for and the
// transfer before them on their lane are, all others in the program's order.
std::vector<size_t> OrderOf(const std::vector<StepNode>& nodes) {
  std::vector<int> waits(nodes.size(), 0);  // of transfers
  std::vector<std::vector<size_t>> followers(nodes.size());
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;  // transfers
  std::map<int, size_t> last;                                              // transfer, by lane
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!IsTransfer(nodes[i])) continue;
    std::vector<size_t> before(nodes[i].after.begin(), nodes[i].after.end());
    const auto [of_lane, is_first] = last.try_emplace(nodes[i].lane, i);
    if (!is_first) before.push_back(std::exchange(of_lane->second, i));
    for (const size_t node : before) followers[node].push_back(i);
    waits[i] = static_cast<int>(before.size());
    if (before.empty()) ready.push(i);
  }
  std::vector<size_t> order;
  const auto enqueue = [&](size_t node) {
    order.push_back(node);
    for (const size_t transfer : followers[node]) {
      if (--waits[transfer] == 0) ready.push(transfer);
    }
  };
  for (size_t i = 0; i <= nodes.size(); ++i) {
    while (!ready.empty()) {
      const size_t transfer = ready.top();
      ready.pop();
      enqueue(transfer);
    }
    if (i < nodes.size() && !IsTransfer(nodes[i])) enqueue(i);
  }
  return order;
}

}  // namespace

bool RunsOnCompute(StepKind kind) {
  const StepLane lane = LaneOf(kind);
  return lane != StepLane::kMessages && lane != StepLane::kTied && lane != StepLane::kGather;
}

bool IsReceive(StepKind kind) {
  return kind == StepKind::kReceiveActivation || kind == StepKind::kReceiveGradient;
}

PipelinePlan PlanPipeline(const std::vector<StepNode>& nodes) {
  PipelinePlan plan;
  const std::vector<size_t> order = OrderOf(nodes);
  std::vector<size_t> place(nodes.size());  // in the plan
  std::map<int, int> users_left;            // of a slot, by micro-batch: computations and sends
  size_t last_computation = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const StepAction& action = nodes[i].action;
    if (LaneOf(action.kind) == StepLane::kCompute) last_computation = i;
    if (UsesSlot(action.kind)) ++users_left[action.micro_batch];
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
      // What uses gathered weights waits for them by itself.
      if (RunsOnCompute(action.kind) && (RunsOnCompute(other) || other == StepKind::kUnshard)) continue;
      // The buckets of tied tensors are the last ones. Other reductions need not wait for these tensors, and
      // the compute stream must not: the other rank may need what is computed next.
      // Without a flush, what is computed next reads them.
      if (other == StepKind::kReduceTied && action.micro_batch < 0 && i < last_computation) continue;
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
    if (UsesSlot(action.kind) && --users_left[action.micro_batch] == 0) {
      free.push_back(node.slot);
    }
  }
  return plan;
}

StepProgram ForwardOnly(StepProgram compute) {
  compute.update_every = 0;
  for (std::vector<StepAction>& actions : compute.actions) {
    std::erase_if(actions, [](const StepAction& action) { return action.kind != StepKind::kForward; });
  }
  return compute;
}

}  // namespace psring
