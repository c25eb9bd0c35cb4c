#include "experiments/page/simulated_step.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "common/measure/trace.h"
#include "experiments/simulator/pipeline.h"
#include "trainer/programs/step_program.h"

namespace psring {
namespace {

constexpr int64_t kLongestNs = 1'000'000'000'000;

// Of a whole stage.
bool Computes(const StepAction& action) {
  return action.kind >= StepKind::kForward && action.kind <= StepKind::kBackwardWeight && action.unit < 0 &&
         action.micro_batch >= 0;
}

// The computation of the replica of the lowest ranks, and its ranks in the job.
struct TracedProgram {
  StepProgram program;
  std::vector<int64_t> ranks;  // by rank of the program
};

std::optional<TracedProgram> ProgramOf(std::vector<TracedAction> actions, int64_t step) {
  std::erase_if(actions, [step](const TracedAction& traced) {
    return traced.step != step || !Computes(traced.timed.action);
  });
  std::map<int, int64_t> rank_of;  // by stage
  int micro_batches = 0;
  for (const auto& [rank, of_step, timed] : actions) {
    int64_t& lowest = rank_of.try_emplace(timed.action.stage, rank).first->second;
    lowest = std::min(lowest, rank);
    micro_batches = std::max(micro_batches, timed.action.micro_batch);
  }
  if (rank_of.empty() || rank_of.rbegin()->first != static_cast<int64_t>(rank_of.size()) - 1) {
    return std::nullopt;
  }
  std::set<int64_t> ranks;
  for (const auto& [stage, rank] : rank_of) ranks.insert(rank);
  TracedProgram traced{.program = {.name = "traced", .ranks = static_cast<int>(ranks.size())},
                       .ranks = {ranks.begin(), ranks.end()}};
  if (traced.program.ranks < 2) return std::nullopt;
  traced.program.actions.resize(ranks.size());
  const auto position_of = [&traced](int64_t rank) {
    return static_cast<int>(std::ranges::lower_bound(traced.ranks, rank) - traced.ranks.begin());
  };
  for (const auto& [stage, rank] : rank_of) traced.program.rank_of.push_back(position_of(rank));
  std::ranges::stable_sort(actions, {}, [](const TracedAction& one) { return one.timed.time.begin_ns; });
  size_t forwards = 0;
  for (const auto& [rank, of_step, timed] : actions) {
    if (rank_of.at(timed.action.stage) != rank) continue;  // of another replica
    traced.program.actions[position_of(rank)].push_back(timed.action);
    forwards += timed.action.kind == StepKind::kForward ? 1 : 0;
  }
  // Before anything is as large as the greatest number.
  if (forwards != rank_of.size() * (static_cast<size_t>(micro_batches) + 1)) return std::nullopt;
  traced.program.micro_batches = micro_batches + 1;
  return traced;
}

// By stage and kind, in ns; of messages that of the sends.
using UsualTimes = std::map<std::pair<int, StepKind>, int64_t>;

// Medians: the first steps take longer.
UsualTimes MediansOf(const std::vector<TracedAction>& actions) {
  std::map<std::pair<int, StepKind>, std::vector<int64_t>> times;
  for (const TracedAction& traced : actions) {
    const auto& [action, time] = traced.timed;
    times[{action.stage, action.kind}].push_back(
        std::clamp<int64_t>(time.end_ns - time.begin_ns, 0, kLongestNs));
  }
  UsualTimes medians;
  for (auto& [key, ns] : times) {
    std::ranges::sort(ns);
    medians[key] = (ns[(ns.size() - 1) / 2] + ns[ns.size() / 2]) / 2;
  }
  return medians;
}

}  // namespace

std::optional<SimulatedStep> SimulateStep(const std::vector<TracedAction>& actions, int64_t step,
                                          int copy_streams, int tied_every) {
  std::optional<TracedProgram> traced = ProgramOf(actions, step);
  if (!traced) return std::nullopt;
  traced->program.update_every = tied_every;
  const UsualTimes times = MediansOf(actions);
  const absl::StatusOr<Walk> walk = WalkStages(
      traced->program,
      [&times](int /*rank*/, const StepAction& action) -> int64_t {
        const auto time = times.find({action.stage, action.kind});
        return time == times.end() ? 0 : time->second;
      },
      copy_streams, /*ties_ends=*/tied_every > 0);
  if (!walk.ok()) return std::nullopt;
  SimulatedStep simulated{.end_ns = walk->end_ns};
  for (int position = 0; position < traced->program.ranks; ++position) {
    const int64_t rank = traced->ranks[position];
    for (size_t i = 0; i < walk->nodes[position].size(); ++i) {
      StepAction action = walk->nodes[position][i].action;
      const StepLane lane = LaneOf(action.kind);
      if (lane != StepLane::kCompute && lane != StepLane::kMessages) continue;
      const SpanKind kind = lane == StepLane::kMessages         ? SpanKind::kMessage
                            : action.kind == StepKind::kForward ? SpanKind::kForward
                                                                : SpanKind::kBackward;
      action.unit = -1;
      simulated.spans.push_back({rank, SpanName(kind), ToText(action), walk->times[position][i]});
    }
    for (const NodeTime& bubble : BubblesOf(*walk, position)) {
      simulated.spans.push_back({rank, SpanName(SpanKind::kBubble), "", bubble});
      simulated.bubble_ns += static_cast<double>(bubble.end_ns - bubble.begin_ns) / traced->program.ranks;
    }
  }
  return simulated;
}

}  // namespace psring
