// In which order a rank enqueues the nodes of its program, and which memory they use. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "trainer/programs/step_program.h"
#include "trainer/programs/walk_program.h"

namespace psring {

struct PipelineNode {
  StepAction action;
  // Earlier nodes on other streams than this one's: a message's channel end, that of tied tensors, the
  // strategy's for gatherings, or, for all other nodes, the compute stream.
  std::vector<size_t> after;
  size_t slot = 0;  // the memory of its micro-batch, if it has one
};

// A micro-batch takes a slot with its first node, and gives it back after its last computation or send on the
// rank. The next one to take it waits for the messages that are sent from there.
struct PipelinePlan {
  std::vector<PipelineNode> nodes;
  size_t slots = 0;
};

// Of a rank's nodes in a walk. A compute stream may run work when it is enqueued (CPUs), so a message or a
// gathering is enqueued as early as possible: a receive before the computation before the one that needs it.
PipelinePlan PlanPipeline(const std::vector<StepNode>& nodes);

// Whether a node is on the compute stream.
bool RunsOnCompute(StepKind kind);
bool IsReceive(StepKind kind);

// The forward passes of `compute`, for evaluation.
StepProgram ForwardOnly(StepProgram compute);

}  // namespace psring
