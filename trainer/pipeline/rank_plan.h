// In which order a rank enqueues the nodes of its program, and which memory they use. Pure.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/pipeline/model_part.h"
#include "trainer/pipeline/step_units.h"
#include "trainer/programs/lower_program.h"
#include "trainer/programs/program_rows.h"
#include "trainer/programs/step_program.h"
#include "trainer/programs/walk_program.h"

namespace psring {

struct PlannedNode {
  StepAction action;
  // Earlier nodes on other streams than this one's: a message's channel end, that of tied tensors, the
  // strategy's for gatherings, or, for all other nodes, the compute stream.
  std::vector<size_t> after;
  size_t slot = 0;          // the memory of its micro-batch, if it has one
  bool is_awaited = false;  // a later node is after it
  // Backward: the first of its unit and kind, in the step or, without a flush, the update: it begins the sum
  // of the gradients.
  bool is_first = false;
};

// A micro-batch takes a slot with its first node, and gives it back after its last computation or send on the
// rank. The next one to take it waits for the messages that are sent from there.
struct RankPlan {
  std::vector<PlannedNode> nodes;
  size_t slots = 0;
};

// Of a rank's nodes in a walk. A compute stream may run work when it is enqueued (CPUs), so a message or a
// gathering is enqueued as early as possible: a receive before the computation before the one that needs it.
// `reductions_first`: a gathering is enqueued directly before a computation, and so after earlier reductions,
// which are on the same lane and for which the next backward pass but one waits.
RankPlan PlanRank(const std::vector<StepNode>& nodes, bool reductions_first = false);

// Whether a node is on the compute stream.
bool RunsOnCompute(StepKind kind);
bool IsReceive(StepKind kind);

// The forward passes of `compute`, for evaluation.
StepProgram ForwardOnly(StepProgram compute);

// What LowerProgram needs of the model. Of other ranks' stages it matters only what they exchange with this
// rank's: they are one unit each. `complete`: Model::CompleteAfterLayers; `tied`: see ModelPart; `kept`: by
// bucket, UsedBesideOthers, or empty.
ModelCut CutOfRank(const PipelinePlace& place, const StepUnits& units,
                   const std::vector<ReadyRange>& complete, const std::vector<ReadyRange>& tied,
                   const std::vector<bool>& kept = {});

// Of a stage's weights in a step without a flush.
struct StageVersions {
  std::vector<int> read;  // by micro-batch: the version that its passes read
  int kept = 1;           // versions at a time, at most
  int update_every = 1;   // micro-batches

  // Of the weights' size, beside the newest version.
  size_t older() const { return static_cast<size_t>(kept) - 1; }
  int updates() const { return static_cast<int>(read.size() - 1) / update_every + 1; }
};

// Of a rank's steps, and of its evaluations, in which `evaluated` batches are one program.
struct RankPlans {
  RankPlan step, evaluation;
  int evaluated = 1;
  // Of the rank's only stage; nothing: the program has a flush.
  std::optional<StageVersions> versions = {};
  // How many micro-batches the rank has in flight, which is its memory.
  size_t slots() const { return step.slots > evaluation.slots ? step.slots : evaluation.slots; }
};

// `order`: adds what nodes wait for; may be null.
using OrderNodes = std::function<void(std::vector<StepNode>& nodes)>;
absl::StatusOr<RankPlans> PlansOfRank(const NamedProgram& program, const PipelinePlace& place,
                                      const ModelCut& cut, int micro_batches, const LowerOptions& options,
                                      const OrderNodes& order = nullptr);

}  // namespace psring
