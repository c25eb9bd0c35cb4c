#include "trainer/programs/lower_program.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "trainer/programs/walk_program.h"

namespace psring {
namespace {

bool GivesWeightGradient(StepKind kind) {
  return kind == StepKind::kBackward || kind == StepKind::kBackwardWeight;
}

// The boundary (after a stage) that a message crosses.
int BoundaryOf(const StepAction& message) {
  const bool from_before =
      message.kind == StepKind::kReceiveActivation || message.kind == StepKind::kSendGradient;
  return message.stage - (from_before ? 1 : 0);
}

// By rank, the computations with all messages, each list in the order of one sequence of all ranks' actions
// in which every action comes after those that it waits for. So no order of lanes leads to a cycle.
absl::StatusOr<std::vector<std::vector<StepAction>>> InOneSequence(const StepProgram& compute) {
  PSRING_ASSIGN_OR_RETURN(const StepProgram lowered,
                          LowerProgram(compute, ModelCut::WholeStages(compute.stages())));
  // None takes no time, so actions that begin together do not wait for each other.
  GivenDurations durations([](int, const StepAction& action) -> int64_t {
    if (LaneOf(action.kind) == StepLane::kMessages) return 1;
    return action.kind == StepKind::kBackward ? 4 : 2;
  });
  PSRING_ASSIGN_OR_RETURN(const Walk walk, WalkProgram(lowered, &durations));
  std::vector<std::vector<StepAction>> order;
  for (size_t rank = 0; rank < walk.nodes.size(); ++rank) {
    // Of those that begin together, messages first, equally sorted on all ranks.
    using Place = std::tuple<int64_t, bool, bool, int, int>;
    std::vector<std::pair<Place, StepAction>> placed;
    for (size_t i = 0; i < walk.nodes[rank].size(); ++i) {
      StepAction action = walk.nodes[rank][i].action;
      const StepLane lane = LaneOf(action.kind);
      if (lane != StepLane::kCompute && lane != StepLane::kMessages) continue;
      action.unit = -1;
      const bool is_gradient =
          action.kind == StepKind::kSendGradient || action.kind == StepKind::kReceiveGradient;
      placed.emplace_back(Place(walk.times[rank][i].begin_ns, lane == StepLane::kCompute, is_gradient,
                                lane == StepLane::kCompute ? 0 : BoundaryOf(action), action.micro_batch),
                          action);
    }
    std::ranges::sort(placed, {}, [](const auto& one) -> const Place& { return one.first; });
    order.emplace_back();
    for (const auto& [place, action] : placed) order.back().push_back(action);
  }
  return order;
}

// The stage's first unit that has weights.
int FirstWithWeights(const ModelCut& cut, int stage) {
  const std::vector<int>& ends = cut.bucket_ends[stage];
  return ends.empty() ? cut.units[stage] : ends.back();
}

// The actions of one rank.
class RankLowering {
 public:
  // `given`: the rank's computations, with its messages if they are in another order than those need them.
  RankLowering(const StepProgram& compute, int rank, const std::vector<StepAction>& given,
               const ModelCut& cut, const LowerOptions& options)
      : compute_(compute), given_(given), cut_(cut), options_(options) {
    for (const StepAction& action : given) {
      if (GivesWeightGradient(action.kind)) ++gradients_left_[action.stage];
    }
    for (const auto& unit : cut.tied) {
      if (compute.rank_of[unit.first] == rank) tied_.insert(unit);
    }
    // Those of one rank are one tensor already.
    if (tied_.size() == cut.tied.size()) tied_.clear();
    ties_left_ = tied_.size();
  }

  std::vector<StepAction> Lower() {
    for (const StepAction& action : given_) {
      if (LaneOf(action.kind) == StepLane::kMessages) {
        out_.push_back(action);
        continue;
      }
      switch (action.kind) {
        case StepKind::kForward:
          LowerForward(action.stage, action.micro_batch);
          break;
        case StepKind::kBackwardWeight:
          LowerWeights(action.stage, action.micro_batch);
          break;
        default:
          LowerBackward(action);
      }
    }
    Release(gathered_);
    Release(kept_);
    for (const StepAction& reduce : after_tied_) Reduce(reduce.stage, reduce.unit);
    if (options_.norm && !updates_.empty()) Emit(StepKind::kNorm, updates_[0].stage);
    out_.insert(out_.end(), updates_.begin(), updates_.end());
    return std::move(out_);
  }

 private:
  void Emit(StepKind kind, int stage, int unit = -1, int micro_batch = -1) {
    out_.push_back({kind, stage, unit, micro_batch});
  }

  void EmitMessage(StepKind kind, int stage, int micro_batch) {
    if (!options_.one_copy_stream) Emit(kind, stage, -1, micro_batch);
  }

  void LowerForward(int stage, int micro_batch) {
    const bool is_first = stage == 0, is_last = stage + 1 == compute_.stages();
    if ((is_first || is_last) && loaded_.insert(micro_batch).second) {
      Emit(StepKind::kLoad, stage, -1, micro_batch);
    }
    if (!is_first && compute_.sends_after(stage - 1)) {
      EmitMessage(StepKind::kReceiveActivation, stage, micro_batch);
    }
    for (int unit = 0; unit < cut_.units[stage]; ++unit) {
      Gather(stage, unit);
      Emit(StepKind::kForward, stage, unit, micro_batch);
    }
    if (compute_.sends_after(stage)) EmitMessage(StepKind::kSendActivation, stage, micro_batch);
  }

  void LowerBackward(const StepAction& action) {
    const auto [kind, stage, whole, micro_batch] = action;
    if (compute_.sends_after(stage)) EmitMessage(StepKind::kReceiveGradient, stage, micro_batch);
    const bool flushes = compute_.flushes();
    const bool is_last = GivesWeightGradient(kind) && --gradients_left_[stage] == 0;
    for (int unit = cut_.units[stage] - 1; unit >= 0; --unit) {
      Gather(stage, unit);
      if (options_.recompute) Emit(StepKind::kRecompute, stage, unit, micro_batch);
      Emit(kind, stage, unit, micro_batch);
      // The stage before waits for this message.
      if (unit == 0 && stage > 0 && compute_.sends_after(stage - 1)) {
        EmitMessage(StepKind::kSendGradient, stage, micro_batch);
      }
      if (flushes && GivesWeightGradient(kind)) AfterWeightGradient(stage, unit, is_last);
    }
    if (!flushes && compute_.EndsUpdate(micro_batch)) UpdateStage(stage, micro_batch);
  }

  // Without a flush, when the backward pass of `micro_batch`, the update's last one, has ended: until then it
  // reads a version that the update may replace.
  void UpdateStage(int stage, int micro_batch) {
    if (!tied_.empty()) Emit(StepKind::kReduceTied, stage, tied_.begin()->second, micro_batch);
    for (const StepKind kind : {StepKind::kReduceGradient, StepKind::kUpdate}) {
      for (const int end : cut_.bucket_ends[stage]) Emit(kind, stage, end, micro_batch);
    }
  }

  void LowerWeights(int stage, int micro_batch) {
    const bool is_last = --gradients_left_[stage] == 0;
    for (int unit = cut_.units[stage] - 1; unit >= 0; --unit) {
      Emit(StepKind::kBackwardWeight, stage, unit, micro_batch);
      AfterWeightGradient(stage, unit, is_last);
    }
  }

  // Makes the weights of a unit, if it has any, available for the next computation.
  void Gather(int stage, int unit) {
    if (!options_.shard_weights || unit < FirstWithWeights(cut_, stage)) return;
    if (gathered_.contains({stage, unit}) || kept_.contains({stage, unit})) return;
    const bool keeps = std::ranges::find(cut_.kept, std::pair(stage, unit)) != cut_.kept.end();
    if (!options_.keep_weights && !keeps) Release(gathered_);
    Emit(StepKind::kUnshard, stage, unit);
    (keeps ? kept_ : gathered_).insert({stage, unit});
  }
  void Release(std::set<std::pair<int, int>>& units) {
    for (const auto& [stage, unit] : units) Emit(StepKind::kReshard, stage, unit);
    units.clear();
  }

  // `is_last`: of the micro-batches.
  void AfterWeightGradient(int stage, int unit, bool is_last) {
    if (is_last && tied_.contains({stage, unit}) && --ties_left_ == 0) {
      Emit(StepKind::kReduceTied, stage, unit);
    }
    const std::vector<int>& ends = cut_.bucket_ends[stage];
    const auto end = std::find(ends.begin(), ends.end(), unit);
    if (end == ends.end()) return;
    const int before = end == ends.begin() ? cut_.units[stage] : end[-1];
    const auto tied = tied_.lower_bound({stage, unit});
    const bool has_tied = tied != tied_.end() && *tied < std::pair(stage, before);
    if (!is_last && (!options_.reduce_always || has_tied)) return;
    if (has_tied) {
      // Its other stage may be far behind: other buckets first.
      after_tied_.push_back({StepKind::kReduceGradient, stage, unit});
    } else {
      Reduce(stage, unit, is_last);
    }
  }

  void Reduce(int stage, int unit, bool is_last = true) {
    Emit(StepKind::kReduceGradient, stage, unit);
    if (!is_last) return;
    if (options_.norm) {
      updates_.push_back({StepKind::kUpdate, stage, unit});
    } else {
      Emit(StepKind::kUpdate, stage, unit);
    }
  }

  const StepProgram& compute_;
  const std::vector<StepAction>& given_;
  const ModelCut& cut_;
  const LowerOptions& options_;
  std::vector<StepAction> out_;
  std::map<int, int> gradients_left_;              // micro-batches, by stage
  std::set<std::pair<int, int>> tied_;             // stage and unit
  size_t ties_left_ = 0;                           // whose gradient is not complete
  std::set<int> loaded_;                           // micro-batches
  std::set<std::pair<int, int>> gathered_, kept_;  // stage and unit; kept_: until the end of the step
  std::vector<StepAction> after_tied_, updates_;   // to emit at the end
};

absl::Status CheckCut(const StepProgram& compute, const ModelCut& cut) {
  const size_t stages = compute.rank_of.size();
  if (cut.units.size() != stages || cut.bucket_ends.size() != stages) {
    return InvalidArgument("the program has ", stages, " stages and the cut ", cut.units.size());
  }
  for (size_t stage = 0; stage < stages; ++stage) {
    const std::vector<int>& ends = cut.bucket_ends[stage];
    const bool decreasing = std::is_sorted(ends.rbegin(), ends.rend()) &&
                            std::adjacent_find(ends.begin(), ends.end()) == ends.end();
    if (!decreasing || (!ends.empty() && (ends.back() < 0 || ends.front() >= cut.units[stage]))) {
      return InvalidArgument("the buckets of stage ", stage, " do not fit its ", cut.units[stage], " units");
    }
  }
  for (const auto* const units : {&cut.tied, &cut.kept}) {
    for (const auto& [stage, unit] : *units) {
      if (stage >= 0 && stage < compute.stages() && unit >= 0 && unit < cut.units[stage]) continue;
      return InvalidArgument("a ", units == &cut.tied ? "tied tensor" : "kept weight", " is in unit ", unit,
                             " of stage ", stage, ", which does not exist");
    }
  }
  return absl::OkStatus();
}

}  // namespace

ModelCut ModelCut::WholeStages(int stages) {
  return {std::vector<int>(stages, 1), std::vector<std::vector<int>>(stages, {0}), {}};
}

absl::StatusOr<StepProgram> LowerProgram(const StepProgram& compute, const ModelCut& cut,
                                         const LowerOptions& options) {
  PSRING_RETURN_IF_ERROR(CheckCut(compute, cut));
  if (!compute.flushes() && (options.norm || options.reduce_always || options.shard_weights)) {
    return InvalidArgument("program ", compute.name,
                           " has no flush, which a norm and gradients or weights in parts need");
  }
  StepProgram lowered = compute;
  lowered.one_copy_stream = options.one_copy_stream;
  for (size_t stage = 0; stage < cut.units.size(); ++stage) {
    lowered.weightless.push_back(FirstWithWeights(cut, static_cast<int>(stage)));
  }
  std::vector<std::vector<StepAction>> given = compute.actions;
  if (options.one_copy_stream) {
    PSRING_ASSIGN_OR_RETURN(given, InOneSequence(compute));
  }
  for (int rank = 0; rank < compute.ranks; ++rank) {
    lowered.actions[rank] = RankLowering(compute, rank, given[rank], cut, options).Lower();
  }
  return lowered;
}

}  // namespace psring
