#include "trainer/pipeline/rank_plan.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "common/base/check.h"

namespace psring {
namespace {

// Forward passes of a pipeline's evaluation that are one program.
constexpr int kBatchesAtOnce = 8;

bool IsSend(StepKind kind) { return kind == StepKind::kSendActivation || kind == StepKind::kSendGradient; }

bool GivesGradient(StepKind kind) { return Computes(kind) && kind != StepKind::kForward; }

// Beside what fills a slot first.
bool UsesSlot(StepKind kind) { return LaneOf(kind) == StepLane::kCompute || IsSend(kind); }

// Messages and gatherings.
bool IsTransfer(const StepNode& node) {
  return LaneOf(node.action.kind) == StepLane::kMessages || node.action.kind == StepKind::kUnshard;
}

// Indices of `nodes` in the order in which they are enqueued: transfers as soon as what they wait for and the
// transfer before them on their lane are, all others in the program's order. `reductions_first`: see
// PlanRank.
std::vector<size_t> OrderOf(const std::vector<StepNode>& nodes, bool reductions_first) {
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
    const bool is_next = !reductions_first || i == nodes.size() || Computes(nodes[i].action.kind);
    while (is_next && !ready.empty()) {
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

RankPlan PlanRank(const std::vector<StepNode>& nodes, bool reductions_first) {
  RankPlan plan;
  const std::vector<size_t> order = OrderOf(nodes, reductions_first);
  std::vector<size_t> place(nodes.size());  // in the plan
  std::map<int, int> users_left;            // of a slot, by micro-batch: computations and sends
  size_t last_computation = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const StepAction& action = nodes[i].action;
    if (LaneOf(action.kind) == StepLane::kCompute) last_computation = i;
    if (UsesSlot(action.kind)) ++users_left[action.micro_batch];
  }
  std::set<std::tuple<StepKind, int, int>> begun;  // sums of gradients, by stage and unit
  std::map<int, size_t> slots;                     // by micro-batch
  std::deque<size_t> free;                         // the one that has been free longest first
  std::vector<std::vector<size_t>> sends;          // by slot: of the micro-batch that has it
  for (const size_t i : order) {
    const StepAction& action = nodes[i].action;
    place[i] = plan.nodes.size();
    PlannedNode& node = plan.nodes.emplace_back(PlannedNode{.action = action});
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
    if (action.kind == StepKind::kUpdate) begun.clear();
    node.is_first =
        GivesGradient(action.kind) && begun.emplace(action.kind, action.stage, action.unit).second;
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
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    for (const size_t before : plan.nodes[i].after) plan.nodes[before].is_awaited = true;
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

ModelCut CutOfRank(const PipelinePlace& place, const StepUnits& units,
                   const std::vector<ReadyRange>& complete, const std::vector<ReadyRange>& tied,
                   const std::vector<bool>& kept) {
  ModelCut cut = ModelCut::WholeStages(place.stages());
  for (size_t chunk = 0; chunk < units.stages.size(); ++chunk) {
    const size_t stage = static_cast<size_t>(place.StageOf(chunk));
    cut.units[stage] = static_cast<int>(units.units_of(chunk));
    cut.bucket_ends[stage] = units.BucketEnds(chunk);
    for (const int unit : kept.empty() ? std::vector<int>() : cut.bucket_ends[stage]) {
      const auto [first, end] = units.buckets[units.stages[chunk] + static_cast<size_t>(unit)];
      const bool all = std::all_of(kept.begin() + static_cast<std::ptrdiff_t>(first),
                                   kept.begin() + static_cast<std::ptrdiff_t>(end), std::identity());
      if (all) cut.kept.emplace_back(stage, unit);
    }
  }
  for (const ReadyRange& tensor : tied) {
    const auto with = std::ranges::find_if(units.layers, [&](const LayerRange& unit) {
      return std::any_of(complete.begin() + static_cast<std::ptrdiff_t>(unit.first),
                         complete.begin() + static_cast<std::ptrdiff_t>(unit.end),
                         [&](const ReadyRange& range) {
                           return range.first <= tensor.first && tensor.first < range.first + range.count;
                         });
    });
    PSRING_CHECK(with != units.layers.end());
    const auto unit = static_cast<size_t>(with - units.layers.begin());
    const auto next = std::ranges::upper_bound(units.stages, unit);
    const size_t chunk = static_cast<size_t>(next - units.stages.begin()) - 1;
    cut.tied.emplace_back(place.StageOf(chunk), static_cast<int>(unit - units.stages[chunk]));
  }
  if (!cut.tied.empty()) cut.tied.emplace_back(place.is_first() ? place.stages() - 1 : 0, 0);
  return cut;
}

absl::StatusOr<RankPlans> PlansOfRank(const NamedProgram& program, const PipelinePlace& place,
                                      const ModelCut& cut, int micro_batches, const LowerOptions& options,
                                      const OrderNodes& order) {
  const size_t rank = static_cast<size_t>(place.position);
  const auto walk_of = [&](const StepProgram& compute) -> absl::StatusOr<Walk> {
    PSRING_CHECK(compute.stages() == place.stages());
    PSRING_ASSIGN_OR_RETURN(const StepProgram lowered, LowerProgram(compute, cut, options));
    return WalkProgram(lowered);
  };
  const auto plan_of = [&](std::vector<StepNode>& nodes) {
    if (order != nullptr) order(nodes);
    return PlanRank(nodes, /*reductions_first=*/program.row.one_rank);
  };
  RankPlans plans{.evaluated = program.row.one_rank ? 1 : kBatchesAtOnce};
  PSRING_ASSIGN_OR_RETURN(const StepProgram step, MakeStepProgram(program, place.positions, micro_batches));
  PSRING_ASSIGN_OR_RETURN(Walk walk, walk_of(step));
  plans.step = plan_of(walk.nodes[rank]);
  if (program.row.asynchronous) {
    PSRING_CHECK(place.chunks == 1);
    plans.versions = StageVersions{.read = std::move(walk.versions[rank]),
                                   .kept = walk.kept_versions[rank],
                                   .update_every = step.update_every};
  }
  PSRING_ASSIGN_OR_RETURN(StepProgram passes, MakeStepProgram(program, place.positions, plans.evaluated));
  PSRING_ASSIGN_OR_RETURN(walk, walk_of(ForwardOnly(std::move(passes))));
  plans.evaluation = plan_of(walk.nodes[rank]);
  return plans;
}

}  // namespace psring
