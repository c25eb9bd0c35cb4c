#include "experiments/simulator/program_durations.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "ring_worker/schedules/schedule.h"
#include "tests/experiments/simulator/test_network.h"
#include "tests/trainer/programs/programs.h"

namespace psring {
namespace {

// Of programs whose stages have one unit each.
ProgramCosts EqualStages(int stages, const UnitCost& cost, double boundary_bytes, int replicas = 1) {
  return {.units = std::vector<std::vector<UnitCost>>(stages, {cost}),
          .boundary_bytes = boundary_bytes,
          .replicas = replicas};
}

double StepOf(const StepProgram& program, const ProgramCosts& costs, const Cluster& cluster) {
  ProgramDurations durations(program, costs, cluster);
  return 1e-9 * static_cast<double>(WalkProgram(program, &durations).value().end_ns);
}

TEST(ProgramDurations, MessagesTakeTheirBytesAndOneLatency) {
  // Forward 1 s, backward 2 s, messages of 0.5 GB at 1 GB/s and a latency of 0.1 s. With one micro-batch both
  // stages compute one after the other.
  const ProgramCosts costs = EqualStages(2, {.forward_s = 1, .backward_s = 2}, 0.5e9);
  EXPECT_NEAR(StepOf(Lowered("gpipe", 2, 1), costs, TestNetwork(0.1)), 1 + 0.6 + 1 + 2 + 0.6 + 2, 1e-8);
  // With two, stage 1 computes 1F0 from 1.6, 1F1 from 2.6, 1B0 from 3.6 to 5.6 and 1B1 to 7.6. The gradient
  // of micro-batch 1 arrives at 8.2, when 0B0 (6.2 to 8.2) ends.
  EXPECT_NEAR(StepOf(Lowered("gpipe", 2, 2), costs, TestNetwork(0.1)), 7.6 + 0.6 + 2, 1e-8);
}

TEST(ProgramDurations, ADividedBackwardPassTakesTwoHalves) {
  const ProgramCosts costs = EqualStages(2, {.forward_s = 1, .backward_s = 3}, 0);
  // Stage 1 ends 0.0I0's input at 2 + 1.5; its own weight gradient follows. Stage 0: 3.5 + 1.5 + 1.5.
  EXPECT_NEAR(StepOf(Lowered("zb-h1", 2, 1), costs, TestNetwork()), 6.5, 1e-8);
}

TEST(ProgramDurations, StagesOnOneNodeUseTheLinksInsideIt) {
  Cluster cluster = TestNetwork();
  cluster.gpus_per_node = 2;
  cluster.intra_bytes_per_s = 10e9;
  const ProgramCosts costs = EqualStages(4, {}, 1e9);
  // One micro-batch forward and back: between 0 and 1, and between 2 and 3, 0.1 s; between the nodes 1 s.
  EXPECT_NEAR(StepOf(Lowered("gpipe", 4, 1), costs, cluster), 2 * (0.1 + 1 + 0.1), 1e-8);
}

TEST(ProgramDurations, ReplicasOnANodeShareItsCard) {
  Cluster cluster = TestNetwork();
  cluster.gpus_per_node = 2;
  cluster.intra_bytes_per_s = 10e9;
  // The two devices of each stage are on one node: two messages at a time.
  EXPECT_NEAR(StepOf(Lowered("gpipe", 2, 1), EqualStages(2, {}, 1e9, 2), cluster), 2 * 2, 1e-8);
}

// Node of an action of rank 0.
int NodeOf(const StepProgram& program, StepKind kind) {
  for (size_t i = 0; i < program.actions[0].size(); ++i) {
    if (program.actions[0][i].kind == kind) return static_cast<int>(i);
  }
  return -1;
}

// The times in s at which rank 0's actions of these kinds end if they begin together.
std::vector<double> EndsOf(const StepProgram& program, const ProgramCosts& costs,
                           const std::vector<StepKind>& kinds) {
  const Cluster cluster = TestNetwork();
  ProgramDurations durations(program, costs, cluster);
  for (const StepKind kind : kinds) {
    const int node = NodeOf(program, kind);
    durations.Start(0, node, program.actions[0][node], 0);
  }
  std::vector<double> ends(kinds.size());
  int64_t now_ns = 0;
  while (const std::optional<std::pair<int, int>> end = durations.NextEnd(now_ns)) {
    for (size_t i = 0; i < kinds.size(); ++i) {
      if (NodeOf(program, kinds[i]) == end->second) ends[i] = 1e-9 * static_cast<double>(now_ns);
    }
  }
  return ends;
}

TEST(ProgramDurations, AReductionSharesTheCardWithAMessage) {
  const StepProgram program = Lowered("gpipe", 2, 2);
  // Two replicas on two nodes: a ring's card carries as many bytes as the buffer has, in 1 s.
  const auto ring = MakeSchedule("ring", Collective::kAllReduce, {.ranks = 2}).value();
  const CollectiveTime reduction = SimulateCollective(*ring, TestNetwork(), 1e9, Pipelining()).value();
  ASSERT_NEAR(reduction.seconds, 1, 1e-3);
  const ProgramCosts costs = EqualStages(2, {.gradient_bytes = 1e9, .reduction = reduction}, 1e9, 2);
  const StepKind reduce = StepKind::kReduceGradient, send = StepKind::kSendActivation;
  EXPECT_NEAR(EndsOf(program, costs, {reduce})[0], reduction.seconds, 1e-8);
  EXPECT_NEAR(EndsOf(program, costs, {send})[0], 1, 1e-8);
  const std::vector<double> both = EndsOf(program, costs, {reduce, send});
  EXPECT_NEAR(both[0], 2, 2e-3);
  EXPECT_NEAR(both[1], 2, 2e-3);
  // Computing shares nothing.
  EXPECT_NEAR(EndsOf(program, EqualStages(2, {.forward_s = 1}, 1e9, 2), {StepKind::kForward, send})[1], 1,
              1e-8);
}

}  // namespace
}  // namespace psring
