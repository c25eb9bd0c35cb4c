#include "trainer/programs/walk_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/trainer/programs/programs.h"

namespace psring {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

std::string ErrorOf(const StepProgram& program) {
  return std::string(WalkProgram(program).status().message());
}

// Stages of 3 units in two buckets; the first and the last stage share a tensor.
StepProgram WithUnits(const std::string& name, int ranks, int micro_batches, const LowerOptions& options) {
  const StepProgram compute = MakeStepProgram(*FindStepProgram(name), ranks, micro_batches).value();
  const int stages = compute.stages();
  ModelCut cut{std::vector<int>(stages, 3), std::vector<std::vector<int>>(stages, {2, 0}), {}};
  cut.tied = {{0, 0}, {stages - 1, 2}};
  return LowerProgram(compute, cut, options).value();
}

const LowerOptions kAllOptions[] = {
    {},
    {.norm = true},
    {.recompute = true},
    {.reduce_always = true},
    {.shard_weights = true},
    {.shard_weights = true, .keep_weights = true},
    {.norm = true, .recompute = true, .reduce_always = true, .shard_weights = true},
    {.one_copy_stream = true},
    {.norm = true, .recompute = true, .shard_weights = true, .one_copy_stream = true}};

TEST(WalkProgramTest, LoweredProgramsAreProvedWithAllOptions) {
  for (const char* name : {"single_stage", "gpipe", "1f1b", "interleaved:2", "zb-h1"}) {
    for (const LowerOptions& options : kAllOptions) {
      for (const int micro_batches : {1, 3, 8}) {
        const int ranks = std::string(name) == "single_stage" ? 1 : 4;
        const auto walk = WalkProgram(WithUnits(name, ranks, micro_batches, options));
        EXPECT_TRUE(walk.ok()) << name << ": " << walk.status();
      }
    }
  }
}

TEST(WalkProgramTest, EveryMissingOrRepeatedActionIsFound) {
  for (const char* name : {"1f1b", "interleaved:2", "zb-h1"}) {
    for (const LowerOptions& options : kAllOptions) {
      const StepProgram program = WithUnits(name, 2, 3, options);
      for (int rank = 0; rank < program.ranks; ++rank) {
        for (size_t i = 0; i < program.actions[rank].size(); ++i) {
          const StepAction action = program.actions[rank][i];
          StepProgram without = program, twice = program;
          without.actions[rank].erase(without.actions[rank].begin() + i);
          twice.actions[rank].insert(twice.actions[rank].begin() + i, action);
          // Weights that stay are only released later, and reductions may be repeated before the last.
          const bool early = action.kind == StepKind::kReduceGradient && options.reduce_always;
          if (!early) {
            EXPECT_NE(ErrorOf(without), "") << name << " without " << ToText(action);
          }
          EXPECT_NE(ErrorOf(twice), "") << name << " with twice " << ToText(action);
        }
      }
    }
  }
}

const LowerOptions kOptionsWithoutFlush[] = {{}, {.recompute = true}, {.one_copy_stream = true}};

TEST(WalkProgramTest, EveryMissingOrRepeatedActionWithoutAFlushIsFound) {
  for (const char* name : {"pipedream", "pipedream-2bw"}) {
    for (const LowerOptions& options : kOptionsWithoutFlush) {
      const StepProgram program = WithUnits(name, 2, 5, options);
      EXPECT_EQ(ErrorOf(program), "");
      for (int rank = 0; rank < program.ranks; ++rank) {
        for (size_t i = 0; i < program.actions[rank].size(); ++i) {
          const StepAction action = program.actions[rank][i];
          StepProgram without = program, twice = program;
          without.actions[rank].erase(without.actions[rank].begin() + i);
          twice.actions[rank].insert(twice.actions[rank].begin() + i, action);
          EXPECT_NE(ErrorOf(without), "") << name << " without " << ToText(action);
          EXPECT_NE(ErrorOf(twice), "") << name << " with twice " << ToText(action);
        }
      }
    }
  }
}

// Moves an action of a rank directly after another one.
StepProgram Moved(StepProgram program, int rank, const StepAction& action, const StepAction& after) {
  auto& actions = program.actions[rank];
  const auto from = std::find(actions.begin(), actions.end(), action);
  EXPECT_NE(from, actions.end()) << ToText(action);
  actions.erase(from);
  const auto to = std::find(actions.begin(), actions.end(), after);
  EXPECT_NE(to, actions.end()) << ToText(after);
  actions.insert(to + 1, action);
  return program;
}

TEST(WalkProgramTest, VersionsFollowFromThePlacesOfUpdates) {
  const StepProgram program = Lowered("pipedream", 2, 3);
  EXPECT_THAT(WalkProgram(program)->versions, ElementsAre(ElementsAre(0, 0, 1), ElementsAre(0, 1, 2)));
  EXPECT_THAT(WalkProgram(program)->kept_versions, ElementsAre(2, 1));
  const StepAction update{StepKind::kUpdate, 1, 0, 0};
  // A forward pass before the update reads the version before.
  const StepProgram late = Moved(program, 1, update, {StepKind::kForward, 1, 0, 1});
  EXPECT_THAT(WalkProgram(late)->versions[1], ElementsAre(0, 0, 2));
  EXPECT_THAT(WalkProgram(late)->kept_versions, ElementsAre(2, 2));
  EXPECT_EQ(ErrorOf(Moved(program, 1, update, {StepKind::kBackward, 1, 0, 1})),
            "rank 1: 1.0B1 comes before the update before its own");
  EXPECT_EQ(ErrorOf(Moved(program, 1, {StepKind::kReduceGradient, 1, 0, 0}, update)),
            "rank 1: 1.0UPDATE0 comes before its gradient is reduced");
}

TEST(WalkProgramTest, AVersionIsThatOfAllBucketsOfAStage) {
  const StepProgram program = WithUnits("pipedream", 2, 3, {});
  EXPECT_EQ(ErrorOf(Moved(program, 1, {StepKind::kUpdate, 1, 0, 0}, {StepKind::kForward, 1, 2, 1})),
            "rank 1: 1.0F1 comes between the updates of its stage's buckets");
}

// One late, rank 0 of four is too far ahead.
TEST(WalkProgramTest, AVersionThatIsNotThereIsFound) {
  StepProgram compute = MakeStepProgram(*FindStepProgram("pipedream"), 4, 8).value();
  compute.one_late = true;
  EXPECT_EQ(ErrorOf(LowerWholeStages(compute)), "rank 0: 0.0F2 reads version 1, and the newest one is 0");
}

TEST(WalkProgramTest, AnUpdateHasTheGradientsOfItsMicroBatches) {
  StepProgram program = Lowered("pipedream-2bw", 2, 4);
  for (StepAction& action : program.actions[1]) {
    if (action == StepAction{StepKind::kReduceGradient, 1, 0, 1}) action.micro_batch = 0;
  }
  EXPECT_EQ(ErrorOf(program), "rank 1: 1.0REDUCE_GRAD0 comes before the gradient");
  program = Lowered("pipedream", 2, 2);
  program.actions[0].push_back({StepKind::kNorm, 0});
  EXPECT_EQ(ErrorOf(program), "rank 0: 0NORM needs a flush");
}

TEST(WalkProgramTest, AComputationWaitsForTheUpdateBeforeIt) {
  GivenDurations durations([](int, const StepAction& action) {
    if (LaneOf(action.kind) == StepLane::kReduce) return int64_t{10};
    return int64_t{LaneOf(action.kind) == StepLane::kCompute ? 1 : 0};
  });
  EXPECT_EQ(WalkProgram(Lowered("pipedream", 1, 3), &durations)->end_ns, 3 * (2 * 1 + 2 * 10));
}

TEST(WalkProgramTest, OneCopyStreamIsProvedForEveryProgram) {
  for (const char* name :
       {"gpipe", "1f1b", "interleaved:2", "interleaved:3", "zb-h1", "pipedream", "pipedream-2bw"}) {
    for (const int ranks : {2, 3, 4, 8}) {
      for (const int micro_batches : {1, 3, 8, 13}) {
        const auto walk = WalkProgram(WithUnits(name, ranks, micro_batches, {.one_copy_stream = true}));
        ASSERT_TRUE(walk.ok()) << name << ": " << walk.status();
        for (const std::vector<StepNode>& nodes : walk->nodes) {
          std::set<int> lanes;
          for (const StepNode& node : nodes) {
            if (LaneOf(node.action.kind) == StepLane::kMessages) lanes.insert(node.lane);
          }
          EXPECT_EQ(lanes.size(), 1) << name;
        }
      }
    }
  }
}

// Rank 0 sends its second activation before it receives a gradient; rank 1 the other way.
TEST(WalkProgramTest, OneLaneInTheOrderOfTheComputationsIsACycleFor1F1B) {
  StepProgram program = Lowered("1f1b", 2, 3);
  program.one_copy_stream = true;
  EXPECT_THAT(ErrorOf(program), HasSubstr("program 1f1b: actions wait for each other"));
  program = Lowered("gpipe", 2, 3);
  program.one_copy_stream = true;
  EXPECT_EQ(ErrorOf(program), "");
}

TEST(WalkProgramTest, MessagesOnOneLaneDoNotOverlap) {
  for (const char* name : {"gpipe", "1f1b", "interleaved:2", "zb-h1"}) {
    const StepProgram compute = MakeStepProgram(*FindStepProgram(name), 4, 8).value();
    const StageTimes times = {.forward = 1, .message = 1};
    const Walk one = Timed(compute, times, {.one_copy_stream = true});
    EXPECT_GT(one.end_ns, Timed(compute, times).end_ns) << name;
    for (size_t rank = 0; rank < one.nodes.size(); ++rank) {
      int64_t until_ns = 0;
      for (size_t i = 0; i < one.nodes[rank].size(); ++i) {
        if (LaneOf(one.nodes[rank][i].action.kind) != StepLane::kMessages) continue;
        EXPECT_GE(one.times[rank][i].begin_ns, until_ns);
        until_ns = one.times[rank][i].end_ns;
      }
    }
  }
}

// Exchanges the first actions of two kinds on rank 0.
std::string ErrorOfSwapped(StepProgram program, StepKind one, StepKind other, int rank = 0) {
  auto& actions = program.actions[rank];
  const auto find = [&](StepKind kind) {
    return std::find_if(actions.begin(), actions.end(), [&](const StepAction& a) { return a.kind == kind; });
  };
  EXPECT_NE(find(one), actions.end());
  EXPECT_NE(find(other), actions.end());
  std::iter_swap(find(one), find(other));
  return ErrorOf(program);
}

TEST(WalkProgramTest, ErrorsNameTheActionAtFault) {
  const StepProgram zb = Lowered("zb-h1", 2, 2, {.norm = true});
  EXPECT_EQ(ErrorOfSwapped(zb, StepKind::kBackwardInput, StepKind::kBackwardWeight),
            "rank 0: 0.0W0 comes before the gradient of its unit's input");
  EXPECT_EQ(ErrorOfSwapped(zb, StepKind::kNorm, StepKind::kUpdate),
            "rank 0: 0.0UPDATE comes before the norm");
  EXPECT_EQ(ErrorOfSwapped(zb, StepKind::kReduceGradient, StepKind::kUpdate),
            "rank 0: 0.0UPDATE comes before its gradient is reduced");
  EXPECT_EQ(ErrorOfSwapped(zb, StepKind::kForward, StepKind::kSendActivation),
            "rank 0: 0SEND_F0 sends before the forward pass is complete");
  EXPECT_EQ(ErrorOfSwapped(zb, StepKind::kReceiveActivation, StepKind::kForward, 1),
            "rank 1: 1.0F0 has no input yet");
  EXPECT_EQ(ErrorOfSwapped(zb, StepKind::kReceiveGradient, StepKind::kBackwardInput),
            "rank 0: 0.0I0 has no gradient yet");
  const StepProgram sharded = Lowered("1f1b", 2, 2, {.shard_weights = true});
  EXPECT_EQ(ErrorOfSwapped(sharded, StepKind::kUnshard, StepKind::kForward),
            "rank 0: 0.0F0 uses weights that have not been gathered");
  const StepProgram tied = WithUnits("1f1b", 2, 2, {});
  EXPECT_THAT(ErrorOfSwapped(tied, StepKind::kReduceTied, StepKind::kBackward),
              HasSubstr("REDUCE_TIED comes before the gradient"));
}

TEST(WalkProgramTest, MessagesInDifferentOrderAreFound) {
  StepProgram program = Lowered("gpipe", 2, 2);
  for (StepAction& action : program.actions[1]) {
    if (action.kind <= StepKind::kReceiveGradient) action.micro_batch = 1 - action.micro_batch;
  }
  EXPECT_EQ(ErrorOf(program), "rank 0: 0SEND_F0 meets rank 1's 1RECV_F1: the order differs");
}

// Rank 0 computes the first micro-batch's backward before the second one's forward; rank 1 the other way.
TEST(WalkProgramTest, ACycleIsNamed) {
  StepProgram program = Lowered("gpipe", 2, 2);
  program.actions[0] = Lowered("single_stage", 1, 2).actions[0];
  std::vector<StepAction> alternating;
  for (int m = 0; m < 2; ++m) {
    for (const StepKind kind : {StepKind::kLoad, StepKind::kForward, StepKind::kSendActivation,
                                StepKind::kReceiveGradient, StepKind::kBackward}) {
      alternating.push_back({kind, 0, kind == StepKind::kForward || kind == StepKind::kBackward ? 0 : -1, m});
    }
  }
  for (const StepKind kind : {StepKind::kReduceGradient, StepKind::kUpdate})
    alternating.push_back({kind, 0, 0});
  program.actions[0] = alternating;
  EXPECT_THAT(ErrorOf(program), testing::AllOf(HasSubstr("actions wait for each other"),
                                               HasSubstr("rank 0's"), HasSubstr("rank 1's")));
}

TEST(WalkProgramTest, AReceiveBeginsWithTheComputationBeforeItsOwn) {
  const StepProgram program = Lowered("1f1b", 2, 3);
  GivenDurations durations([](int, const StepAction& action) {
    return int64_t{LaneOf(action.kind) == StepLane::kCompute  ? 100
                   : action.kind == StepKind::kSendActivation ? 10
                                                              : 0};
  });
  const Walk walk = WalkProgram(program, &durations).value();
  for (size_t i = 0; i < program.actions[1].size(); ++i) {
    if (program.actions[1][i] != StepAction{StepKind::kReceiveActivation, 1, -1, 1}) continue;
    // Rank 0 has sent it at 200, while rank 1 computes 1F0 from 110 to 210 and 1B0 from 210 to 310.
    EXPECT_EQ(walk.times[1][i].begin_ns, 210);
    EXPECT_EQ(walk.times[1][i].end_ns, 220);
  }
  EXPECT_THAT(walk.peak_live, ElementsAre(2, 1));
  EXPECT_THAT(walk.receive_slots, ElementsAre(0, 2));
}

TEST(WalkProgramTest, WeightsAreGatheredOneUnitAhead) {
  const Walk walk = WalkProgram(WithUnits("single_stage", 1, 2, {.shard_weights = true})).value();
  EXPECT_THAT(walk.unsharded_peak, Each(2));
}

TEST(WalkProgramTest, WeightsThatStayAreGatheredOncePerStep) {
  const StepProgram program = WithUnits("single_stage", 1, 2, {.shard_weights = true, .keep_weights = true});
  std::map<int, int> gathered;  // by unit
  for (const StepAction& action : program.actions[0]) {
    if (action.kind == StepKind::kUnshard) ++gathered[action.unit];
  }
  for (const auto& [unit, times] : gathered) EXPECT_EQ(times, 1) << unit;
  EXPECT_GT(gathered.size(), 2u);
  EXPECT_THAT(WalkProgram(program)->unsharded_peak, Each(static_cast<int>(gathered.size())));
}

// Of three units: the last stays for backward, and the first one that is released for the next micro-batch.
TEST(WalkProgramTest, WeightsThatThereAreNotOrThatStayReleaseNoOthers) {
  const StepProgram compute = MakeStepProgram(*FindStepProgram("single_stage"), 1, 2).value();
  const auto gathered = [&](const ModelCut& cut) {
    const StepProgram program = LowerProgram(compute, cut, {.shard_weights = true}).value();
    EXPECT_EQ(ErrorOf(program), "");
    std::vector<int> units;
    for (const StepAction& action : program.actions[0]) {
      if (action.kind == StepKind::kUnshard) units.push_back(action.unit);
    }
    return units;
  };
  EXPECT_THAT(gathered({{3}, {{2, 1, 0}}, {}}), ElementsAre(0, 1, 2, 1, 0, 1, 2, 1, 0));
  EXPECT_THAT(gathered({{3}, {{2, 1}}, {}}), ElementsAre(1, 2, 1, 2, 1)) << "the first unit has no weights";
  EXPECT_THAT(gathered({{3}, {{2, 1, 0}}, {}, {{0, 0}}}), ElementsAre(0, 1, 2, 1, 2, 1));
  EXPECT_FALSE(LowerProgram(compute, {{3}, {{2, 1, 0}}, {}, {{0, 3}}}).ok());
}

TEST(WalkProgramTest, ATiedTensorIsAddedBeforeItsBucketIsReduced) {
  const StepProgram program = WithUnits("1f1b", 2, 2, {});
  EXPECT_THAT(ToText(program), HasSubstr("0.0REDUCE_TIED 0.0REDUCE_GRAD"));
  EXPECT_THAT(ToText(program), HasSubstr("1.2REDUCE_TIED"));
}

// Its stages add up the gradient of all micro-batches.
TEST(WalkProgramTest, ABucketWithATiedTensorIsReducedOnce) {
  const StepProgram program = WithUnits("1f1b", 2, 3, {.reduce_always = true});
  std::map<std::pair<int, int>, int> reduced;  // by stage and unit
  for (const std::vector<StepAction>& actions : program.actions) {
    for (const StepAction& action : actions) {
      if (action.kind == StepKind::kReduceGradient) ++reduced[{action.stage, action.unit}];
    }
  }
  // Stage 0 shares a tensor of its first unit, stage 1 one of its last.
  EXPECT_THAT(reduced, ElementsAre(Pair(Pair(0, 0), 1), Pair(Pair(0, 2), 3), Pair(Pair(1, 0), 3),
                                   Pair(Pair(1, 2), 1)));
}

TEST(WalkProgramTest, WithoutAFlushATiedTensorIsAddedInEveryUpdate) {
  EXPECT_THAT(ToText(WithUnits("pipedream", 2, 2, {})),
              HasSubstr("0.0REDUCE_TIED0 0.2REDUCE_GRAD0 0.0REDUCE_GRAD0 0.2UPDATE0 0.0UPDATE0"));
  const StepProgram compute = MakeStepProgram(*FindStepProgram("pipedream"), 2, 2).value();
  ModelCut cut = ModelCut::WholeStages(2);
  cut.tied = {{0, 0}, {1, 0}};
  StepProgram program = LowerProgram(compute, cut).value();
  GivenDurations units([](int, const StepAction& action) {
    return int64_t{action.kind == StepKind::kForward ? 1 : action.kind == StepKind::kBackward ? 2 : 0};
  });
  const Walk walk = WalkProgram(program, &units).value();
  // Rank 1 has 1B0 at 2-4, and rank 0 has 0B0 at 4-6.
  const auto second = std::ranges::find(program.actions[1], StepAction{StepKind::kForward, 1, 0, 1});
  ASSERT_NE(second, program.actions[1].end());
  EXPECT_EQ(walk.times[1][static_cast<size_t>(second - program.actions[1].begin())].begin_ns, 6);
  const StepAction tie{StepKind::kReduceTied, 1, 0, 0};
  EXPECT_EQ(ErrorOf(Moved(program, 1, tie, {StepKind::kReduceGradient, 1, 0, 0})),
            "rank 1: 1.0REDUCE_GRAD0 comes before the sum of a tied tensor");
  std::erase(program.actions[1], tie);
  std::erase(program.actions[1], StepAction{StepKind::kReduceTied, 1, 0, 1});
  EXPECT_EQ(ErrorOf(program), "rank 0: 0.0REDUCE_TIED0 is on one rank only");
}

TEST(WalkProgramTest, OnlyUnitsWithoutWeightsAreNotReduced) {
  const StepProgram compute = MakeStepProgram(*FindStepProgram("single_stage"), 1, 2).value();
  for (const std::vector<int>& ends : {std::vector<int>{2, 1}, std::vector<int>{}}) {
    StepProgram program = LowerProgram(compute, {{3}, {ends}, {}}, {.norm = true}).value();
    EXPECT_EQ(ErrorOf(program), "");
    program.weightless.clear();
    EXPECT_EQ(ErrorOf(program), "program single_stage: stage 0 does not reduce all of its gradient");
  }
}

TEST(WalkProgramTest, ThousandsOfRanksAreTimed) {
  const Walk walk = Timed(MakeStepProgram(*FindStepProgram("1f1b"), 4096, 8).value(), {.forward = 1});
  EXPECT_NEAR(walk.Bubble(), 4095. / 4103, 1e-9);
}

TEST(LowerProgramTest, ACutThatDoesNotFitIsRejected) {
  const StepProgram compute = MakeStepProgram(*FindStepProgram("1f1b"), 2, 2).value();
  EXPECT_FALSE(LowerProgram(compute, ModelCut::WholeStages(3)).ok());
  EXPECT_FALSE(LowerProgram(compute, {{3, 3}, {{2, 0}, {2, -1}}, {}}).ok());
  EXPECT_FALSE(LowerProgram(compute, {{3, 3}, {{2, 0}, {3, 0}}, {}}).ok());
  EXPECT_FALSE(LowerProgram(compute, {{3, 3}, {{2, 0}, {1, 2, 0}}, {}}).ok());
  EXPECT_FALSE(LowerProgram(compute, {{3, 3}, {{0}, {0}}, {{0, 3}, {1, 0}}}).ok());
  EXPECT_TRUE(LowerProgram(compute, {{3, 3}, {{0}, {0}}, {{0, 2}, {1, 0}}}).ok());
}

TEST(LowerProgramTest, WhatNeedsAFlushIsRejectedWithoutOne) {
  const StepProgram compute = MakeStepProgram(*FindStepProgram("pipedream"), 2, 2).value();
  const ModelCut cut = ModelCut::WholeStages(2);
  for (const LowerOptions& options :
       {LowerOptions{.norm = true}, {.reduce_always = true}, {.shard_weights = true}}) {
    EXPECT_THAT(std::string(LowerProgram(compute, cut, options).status().message()),
                HasSubstr("program pipedream has no flush"));
  }
}

}  // namespace
}  // namespace psring
