#include "trainer/programs/check_program.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"

namespace psring {
namespace {

// What has been done of one stage. Units of whole stages (-1) count as unit 0.
struct StageState {
  // By micro-batch: how many units have passed; backward begins with the last.
  std::vector<int> forward, input, weight;
  // By micro-batch, how often a message passed.
  std::array<std::vector<uint8_t>, 4> messages;
  int units = 0;
  std::vector<int> gradients;     // by unit: micro-batches whose weight gradients are complete
  std::map<int, int> reduced;     // by bucket's end: gradients at its last reduction
  std::map<int, int> updates;     // by bucket's end
  std::set<int> ties;             // units
  std::map<int, int> added_ties;  // by unit: sums over the stages
  std::vector<uint8_t> gathered;  // by unit
  bool gathers = false, recomputes = false;
  int live = 0;
};

constexpr size_t MessageOf(StepKind kind) {
  return static_cast<size_t>(kind) - static_cast<size_t>(StepKind::kSendActivation);
}

class Checker {
 public:
  Checker(const StepProgram& program, Walk& walk) : program_(program), walk_(walk) {}

  absl::Status Run() {
    PSRING_RETURN_IF_ERROR(Prepare());
    for (int rank = 0; rank < program_.ranks; ++rank) {
      norm_known_ = false;
      resident_ = released_ = 0;
      last_ended_ = {-1, 0};
      loaded_.clear();
      recomputed_.reset();
      for (const StepAction& action : program_.actions[rank]) PSRING_RETURN_IF_ERROR(Check(rank, action));
      norms_ += norm_known_;
      if (resident_ != 0) {
        return InvalidArgument("program ", program_.name, ": rank ", rank, " keeps gathered weights");
      }
    }
    return CheckEnd();
  }

 private:
  static int UnitOf(const StepAction& action) { return std::max(action.unit, 0); }

  absl::Status Prepare() {
    const int stages = program_.stages();
    if (static_cast<int>(program_.actions.size()) != program_.ranks || stages == 0) {
      return InvalidArgument("program ", program_.name, " has ", stages, " stages and actions for ",
                             program_.actions.size(), " of ", program_.ranks, " ranks");
    }
    stages_.resize(stages);
    walk_.peak_live.assign(stages, 0);
    walk_.receive_slots.assign(stages, 0);
    walk_.unsharded_peak.assign(program_.ranks, 0);
    walk_.versions.assign(stages, {});
    walk_.kept_versions.assign(stages, 1);
    for (int rank = 0; rank < program_.ranks; ++rank) {
      for (const StepAction& action : program_.actions[rank]) {
        if (action.stage < 0 || action.stage >= stages || program_.rank_of[action.stage] != rank) {
          return ActionError(rank, action, "is not on the rank of its stage");
        }
        const bool updates = action.kind == StepKind::kReduceGradient ||
                             action.kind == StepKind::kReduceTied || action.kind == StepKind::kUpdate;
        if (!program_.flushes() && action.kind > StepKind::kReceiveGradient && !updates) {
          return ActionError(rank, action, "needs a flush");
        }
        const bool of_micro_batch =
            action.kind <= StepKind::kReceiveGradient || (updates && !program_.flushes());
        if (of_micro_batch ? action.micro_batch < 0 || action.micro_batch >= program_.micro_batches
                           : action.micro_batch != -1) {
          return ActionError(rank, action, "has no such micro-batch");
        }
        StageState& stage = stages_[action.stage];
        stage.units = std::max(stage.units, UnitOf(action) + 1);
        if (action.kind == StepKind::kUnshard) stage.gathers = true;
        if (action.kind == StepKind::kRecompute) stage.recomputes = true;
        if (action.kind == StepKind::kReduceTied) stage.ties.insert(UnitOf(action));
        if (action.kind == StepKind::kReduceGradient) stage.reduced[UnitOf(action)] = 0;
        has_backward_ =
            has_backward_ || action.kind == StepKind::kBackward || action.kind == StepKind::kBackwardInput;
        has_norm_ = has_norm_ || action.kind == StepKind::kNorm;
      }
    }
    for (std::vector<int>& versions : walk_.versions) {
      if (!program_.flushes()) versions.assign(program_.micro_batches, 0);
    }
    for (StageState& stage : stages_) {
      for (auto* done : {&stage.forward, &stage.input, &stage.weight})
        done->assign(program_.micro_batches, 0);
      for (auto& messages : stage.messages) messages.assign(program_.micro_batches, 0);
      stage.gradients.assign(stage.units, 0);
      stage.gathered.assign(stage.units, 0);
    }
    return absl::OkStatus();
  }

  absl::Status Check(int rank, const StepAction& action) {
    StageState& stage = stages_[action.stage];
    const int unit = UnitOf(action), m = action.micro_batch, units = stage.units;
    const auto fails = [&](const char* what) { return ActionError(rank, action, what); };
    const bool computes = LaneOf(action.kind) == StepLane::kCompute && action.kind != StepKind::kReshard;
    if (computes) last_ended_ = {-1, 0};
    switch (action.kind) {
      case StepKind::kLoad:
        return loaded_.insert(m).second ? absl::OkStatus() : fails("is there twice");
      case StepKind::kForward:
        if (stage.forward[m] != unit) return fails("is not the next unit of the forward pass");
        // The first stage computes with the samples, the last one with their labels.
        if ((action.stage == 0 || action.stage + 1 == program_.stages()) && !loaded_.contains(m)) {
          return fails("has no samples yet");
        }
        if (unit == 0 && !InputIsThere(action.stage, m)) return fails("has no input yet");
        if (unit == 0) PSRING_RETURN_IF_ERROR(ReadVersion(rank, action));
        ++stage.forward[m];
        if (unit == 0) walk_.peak_live[action.stage] = std::max(walk_.peak_live[action.stage], ++stage.live);
        break;
      case StepKind::kRecompute:
        if (stage.forward[m] != units) return fails("comes before the forward pass");
        if (recomputed_.has_value()) return fails("comes before the use of other recomputed activations");
        recomputed_ = action;
        break;
      case StepKind::kBackward:
      case StepKind::kBackwardInput:
        if (stage.forward[m] != units) return fails("comes before the forward pass");
        if (stage.input[m] != units - 1 - unit) return fails("is not the next unit of the backward pass");
        if (unit == units - 1 && !GradientIsThere(action.stage, m)) return fails("has no gradient yet");
        if (stage.recomputes && std::exchange(recomputed_, std::nullopt) !=
                                    StepAction{StepKind::kRecompute, action.stage, action.unit, m}) {
          return fails("has no recomputed activations");
        }
        ++stage.input[m];
        if (action.kind == StepKind::kBackward) PSRING_RETURN_IF_ERROR(AddWeights(rank, action));
        break;
      case StepKind::kBackwardWeight:
        PSRING_RETURN_IF_ERROR(AddWeights(rank, action));
        break;
      case StepKind::kSendActivation:
        if (!program_.sends_after(action.stage))
          return fails("sends to the same rank, or from the last stage");
        if (stage.forward[m] != units) return fails("sends before the forward pass is complete");
        return Pass(rank, action);
      case StepKind::kReceiveActivation:
        if (action.stage == 0 || !program_.sends_after(action.stage - 1)) {
          return fails("receives from the same rank, or for the first stage");
        }
        walk_.receive_slots[action.stage] =
            std::max(walk_.receive_slots[action.stage],
                     1 + (last_ended_.first == action.stage ? last_ended_.second : stage.live));
        return Pass(rank, action);
      case StepKind::kSendGradient:
        if (action.stage == 0 || !program_.sends_after(action.stage - 1)) {
          return fails("sends to the same rank, or from the first stage");
        }
        if (stage.input[m] != units) return fails("sends before the backward pass is complete");
        return Pass(rank, action);
      case StepKind::kReceiveGradient:
        if (!program_.sends_after(action.stage)) return fails("receives from the same rank");
        return Pass(rank, action);
      case StepKind::kUnshard:
        if (stage.gathered[unit]) return fails("gathers weights that are there");
        stage.gathered[unit] = 1;
        ++resident_;
        walk_.unsharded_peak[rank] = std::max(walk_.unsharded_peak[rank], resident_ + released_);
        return absl::OkStatus();
      case StepKind::kReshard:
        if (!stage.gathered[unit]) return fails("releases weights that have not been gathered");
        stage.gathered[unit] = 0;
        --resident_;
        ++released_;
        return absl::OkStatus();
      case StepKind::kReduceTied:
        if (stage.gradients[unit] != (program_.flushes() ? program_.micro_batches : m + 1)) {
          return fails("comes before the gradient");
        }
        if (++stage.added_ties[unit] != UpdatesWith(m)) return fails("is there twice");
        return absl::OkStatus();
      case StepKind::kReduceGradient:
        return CheckReduce(rank, action);
      case StepKind::kNorm:
        if (norm_known_) return fails("is there twice");
        norm_known_ = true;
        for (int s = 0; s < program_.stages(); ++s) {
          if (program_.rank_of[s] == rank && !IsReduced(stages_[s])) return fails("comes before a reduction");
        }
        return absl::OkStatus();
      case StepKind::kUpdate:
        if (!stage.reduced.contains(unit) || stage.reduced[unit] != Complete(stage, unit, m)) {
          return fails("comes before its gradient is reduced");
        }
        if (has_norm_ && !norm_known_) return fails("comes before the norm");
        if (++stage.updates[unit] != UpdatesWith(m)) return fails("is there twice");
        return absl::OkStatus();
    }
    // A computation.
    const bool uses_weights =
        action.kind != StepKind::kBackwardWeight && unit >= FirstWithWeights(action.stage);
    if (stage.gathers && uses_weights && !stage.gathered[unit]) {
      return fails("uses weights that have not been gathered");
    }
    released_ = 0;
    return absl::OkStatus();
  }

  // The stage's first unit that has weights.
  int FirstWithWeights(int stage) const {
    return stage < static_cast<int>(program_.weightless.size()) ? program_.weightless[stage] : 0;
  }

  bool InputIsThere(int stage, int m) const {
    if (stage == 0) return true;
    if (program_.sends_after(stage - 1)) {
      return stages_[stage].messages[MessageOf(StepKind::kReceiveActivation)][m] != 0;
    }
    return stages_[stage - 1].forward[m] == stages_[stage - 1].units;
  }
  bool GradientIsThere(int stage, int m) const {
    if (stage + 1 == program_.stages()) return true;
    if (program_.sends_after(stage)) {
      return stages_[stage].messages[MessageOf(StepKind::kReceiveGradient)][m] != 0;
    }
    return stages_[stage + 1].input[m] == stages_[stage + 1].units;
  }

  absl::Status Pass(int rank, const StepAction& action) {
    uint8_t& passed = stages_[action.stage].messages[MessageOf(action.kind)][action.micro_batch];
    if (passed++ != 0) return ActionError(rank, action, "is there twice");
    return absl::OkStatus();
  }

  absl::Status AddWeights(int rank, const StepAction& action) {
    StageState& stage = stages_[action.stage];
    const int unit = UnitOf(action), m = action.micro_batch;
    if (stage.input[m] < stage.units - unit) {
      return ActionError(rank, action, "comes before the gradient of its unit's input");
    }
    if (stage.weight[m] != stage.units - 1 - unit) {
      return ActionError(rank, action, "is not the next unit of the weight gradients");
    }
    if (!program_.flushes() && !stage.reduced.empty() && UpdatesOf(stage) != program_.UpdateOf(m)) {
      return ActionError(rank, action, "comes before the update before its own");
    }
    ++stage.gradients[unit];
    if (++stage.weight[m] == stage.units) last_ended_ = {action.stage, stage.live--};
    return absl::OkStatus();
  }

  // With that of which `micro_batch` is the last one; with a flush there is one.
  int UpdatesWith(int micro_batch) const {
    return program_.flushes() ? 1 : program_.UpdateOf(micro_batch) + 1;
  }

  // Those of each of its buckets; nothing: their numbers differ.
  static std::optional<int> UpdatesOf(const StageState& stage) {
    std::optional<int> updates;
    for (const auto& [end, gradients] : stage.reduced) {
      const auto bucket = stage.updates.find(end);
      const int of_bucket = bucket == stage.updates.end() ? 0 : bucket->second;
      if (updates.value_or(of_bucket) != of_bucket) return std::nullopt;
      updates = of_bucket;
    }
    return updates;
  }

  // Which version a micro-batch reads, at its forward pass.
  absl::Status ReadVersion(int rank, const StepAction& action) {
    const StageState& stage = stages_[action.stage];
    if (program_.flushes() || stage.reduced.empty()) return absl::OkStatus();
    const std::optional<int> newest = UpdatesOf(stage);
    if (!newest) return ActionError(rank, action, "comes between the updates of its stage's buckets");
    const int before = std::max(0, program_.UpdateOf(action.micro_batch) - 1);
    const int version = program_.one_late ? before : *newest;
    if (version > *newest || version + 1 < *newest) {
      return ActionError(rank, action,
                         absl::StrCat("reads version ", version, ", and the newest one is ", *newest));
    }
    walk_.versions[action.stage][action.micro_batch] = version;
    return absl::OkStatus();
  }

  // After each update the newest version, and older ones that later micro-batches read.
  int KeptVersions(const std::vector<int>& versions) const {
    int most = 1;
    for (int m = 0; m < static_cast<int>(versions.size()); ++m) {
      if (!program_.EndsUpdate(m)) continue;
      const int newest = program_.UpdateOf(m) + 1;
      int kept = 1, counted = -1;
      for (int later = m + 1; later < program_.micro_batches && versions[later] < newest; ++later) {
        kept += std::exchange(counted, versions[later]) != versions[later];
      }
      most = std::max(most, kept);
    }
    return most;
  }

  // The weight gradients of a bucket, when it is complete and now.
  int UnitsOfBucket(const StageState& stage, int end) const {
    const auto next = stage.reduced.upper_bound(end);
    return (next == stage.reduced.end() ? stage.units : next->first) - end;
  }
  // `last`: of an update's micro-batches; -1: of the step.
  int Complete(const StageState& stage, int end, int last = -1) const {
    return UnitsOfBucket(stage, end) * (last < 0 ? program_.micro_batches : last + 1);
  }

  absl::Status CheckReduce(int rank, const StepAction& action) {
    StageState& stage = stages_[action.stage];
    const int end = UnitOf(action);
    int gradients = 0;
    for (int unit = end; unit < end + UnitsOfBucket(stage, end); ++unit) {
      gradients += stage.gradients[unit];
      const bool adds = stage.ties.contains(unit) &&
                        (!program_.flushes() || stage.gradients[unit] == program_.micro_batches);
      if (adds && stage.added_ties[unit] != UpdatesWith(action.micro_batch)) {
        return ActionError(rank, action, "comes before the sum of a tied tensor");
      }
    }
    const bool is_complete = program_.flushes() || (program_.EndsUpdate(action.micro_batch) &&
                                                    gradients == Complete(stage, end, action.micro_batch));
    if (gradients == stage.reduced[end] || !is_complete)
      return ActionError(rank, action, "comes before the gradient");
    stage.reduced[end] = gradients;
    return absl::OkStatus();
  }

  bool IsReduced(const StageState& stage) const {
    return std::all_of(stage.reduced.begin(), stage.reduced.end(),
                       [&](const auto& bucket) { return bucket.second == Complete(stage, bucket.first); });
  }

  absl::Status CheckEnd() {
    for (int s = 0; s < program_.stages(); ++s) {
      const StageState& stage = stages_[s];
      const auto fails = [&](const std::string& what) {
        return InvalidArgument("program ", program_.name, ": stage ", s, " ", what);
      };
      for (int m = 0; m < program_.micro_batches; ++m) {
        if (stage.units == 0 || stage.forward[m] != stage.units) {
          return fails(absl::StrCat("lacks a forward pass of micro-batch ", m));
        }
        if (has_backward_ && stage.input[m] != stage.units) {
          return fails(absl::StrCat("lacks a backward pass of micro-batch ", m));
        }
        if (has_backward_ && stage.weight[m] != stage.units) {
          return fails(absl::StrCat("lacks weight gradients of micro-batch ", m));
        }
      }
      if (!has_backward_) continue;
      const int first = FirstWithWeights(s);
      if (stage.reduced.empty() ? first < stage.units : stage.reduced.begin()->first != first) {
        return fails("does not reduce all of its gradient");
      }
      const bool some = !program_.flushes() && !stage.reduced.empty();
      if (stage.updates.size() != stage.reduced.size() || (some && UpdatesOf(stage) != program_.updates())) {
        return fails("does not update all of its weights");
      }
      walk_.kept_versions[s] = KeptVersions(walk_.versions[s]);
    }
    if (norms_ != 0 && norms_ != program_.ranks) {
      return InvalidArgument("program ", program_.name, ": ", norms_, " of ", program_.ranks,
                             " ranks have a norm");
    }
    return absl::OkStatus();
  }

  const StepProgram& program_;
  Walk& walk_;
  std::vector<StageState> stages_;
  bool has_backward_ = false, has_norm_ = false;
  int norms_ = 0;
  // Of the rank that is being checked.
  bool norm_known_ = false;
  std::pair<int, int> last_ended_;  // if the last computation ended a micro-batch: its stage, those in flight
  std::set<int> loaded_;            // micro-batches
  std::optional<StepAction> recomputed_;  // whose activations the next backward uses
  int resident_ = 0, released_ = 0;       // units with weights; those released since the last computation
};

}  // namespace

absl::Status ActionError(int rank, const StepAction& action, const std::string& what) {
  return InvalidArgument("rank ", rank, ": ", ToText(action), " ", what);
}

absl::Status CheckProgram(const StepProgram& program, Walk& walk) { return Checker(program, walk).Run(); }

}  // namespace psring
