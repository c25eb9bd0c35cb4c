// The order in which a rank enqueues a program, its memory, and the units and buckets of several stages.
#include "trainer/pipeline/rank_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/device_factory/make_ops.h"
#include "tests/trainer/cluster.h"
#include "trainer/models/replayed_model.h"
#include "trainer/pipeline/model_part.h"
#include "trainer/pipeline/step_units.h"
#include "trainer/programs/lower_program.h"
#include "trainer/programs/program_rows.h"
#include "trainer/programs/walk_program.h"

namespace psring {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;

StepProgram ProgramNamed(const std::string& name, int ranks, int micro_batches) {
  return *MakeStepProgram(*FindStepProgram(name), ranks, micro_batches);
}
std::vector<StepNode> NodesOfRank(const StepProgram& compute, size_t rank, const LowerOptions& options = {}) {
  const ModelCut cut = ModelCut::WholeStages(compute.stages());
  return WalkProgram(*LowerProgram(compute, cut, options))->nodes[rank];
}
RankPlan PlanOfRank(const StepProgram& compute, size_t rank) { return PlanRank(NodesOfRank(compute, rank)); }

std::string TextOf(const RankPlan& plan) {
  std::string text;
  for (const PlannedNode& node : plan.nodes) text += ToText(node.action) + " ";
  return text;
}

TEST(PlanRank, EnqueuesAReceiveBeforeTheComputationBeforeItsUse) {
  const RankPlan plan = PlanOfRank(ProgramNamed("1f1b", 2, 2), 0);
  const std::string text = TextOf(plan);
  EXPECT_LT(text.find("0RECV_B0"), text.find("0F1 ")) << text;
  EXPECT_LT(text.find("0F0 "), text.find("0RECV_B0")) << text;
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    for (const size_t before : plan.nodes[i].after) EXPECT_LT(before, i);
  }
}

// On one lane the order is that of the walk; what a message waits for is enqueued before it.
TEST(PlanRank, KeepsTheOrderOfMessagesOnOneLane) {
  for (const char* name : {"gpipe", "1f1b", "interleaved:2", "zb-h1"}) {
    const StepProgram compute = ProgramNamed(name, 4, 8);
    for (const StepProgram& program : {compute, ForwardOnly(compute)}) {
      for (size_t rank = 0; rank < 4; ++rank) {
        const std::vector<StepNode> nodes = NodesOfRank(program, rank, {.one_copy_stream = true});
        const RankPlan plan = PlanRank(nodes);
        std::vector<std::string> walked, enqueued, computed, expected;
        for (const StepNode& node : nodes) {
          (RunsOnCompute(node.action.kind) ? expected : walked).push_back(ToText(node.action));
        }
        for (size_t i = 0; i < plan.nodes.size(); ++i) {
          const auto& [action, after, slot, is_awaited, is_first] = plan.nodes[i];
          (RunsOnCompute(action.kind) ? computed : enqueued).push_back(ToText(action));
          EXPECT_LT(slot, plan.slots);
          for (const size_t before : after) EXPECT_LT(before, i);
        }
        EXPECT_EQ(enqueued, walked);
        EXPECT_EQ(computed, expected);
      }
    }
  }
}

TEST(PlanRank, TakesSlotsForTheMicroBatchesInFlightAndTheOneToBeReceived) {
  for (const auto& [program, first, last] :
       {std::tuple{"gpipe", 8, 8}, {"1f1b", 4, 2}, {"interleaved:2", 8, 6}, {"zb-h1", 4, 5}}) {
    const StepProgram compute = ProgramNamed(program, 4, 8);
    EXPECT_EQ(PlanOfRank(compute, 0).slots, first) << program;
    EXPECT_EQ(PlanOfRank(compute, 3).slots, last) << program;
    EXPECT_EQ(PlanOfRank(ForwardOnly(compute), 0).slots, compute.stages() > 4 ? 4 : 1) << program;
  }
}

TEST(PlansOfRank, HaveSlotsForStepsAndEvaluationsAndVersionsWithoutAFlush) {
  const auto plans_of = [](const char* name) {
    return *PlansOfRank(*FindStepProgram(name), {.position = 0, .positions = 4}, ModelCut::WholeStages(4),
                        /*micro_batches=*/8, {});
  };
  const RankPlans plans = plans_of("1f1b");
  EXPECT_EQ(plans.step.slots, 4);
  EXPECT_EQ(plans.slots(), 4);
  EXPECT_EQ(plans.evaluated, 8);
  EXPECT_FALSE(plans.versions.has_value());
  const std::optional<StageVersions> versions = plans_of("pipedream").versions;
  ASSERT_TRUE(versions.has_value());
  EXPECT_EQ(versions->updates(), 8);
  EXPECT_EQ(versions->older(), 3);  // of the four micro-batches in flight
  const absl::StatusOr<RankPlans> whole =
      PlansOfRank(*FindStepProgram("single_stage"), {}, ModelCut::WholeStages(1), /*micro_batches=*/8, {});
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->slots(), 1);
  EXPECT_EQ(whole->evaluated, 1);
}

// The next micro-batch in a slot must not overwrite what is still being sent.
TEST(PlanRank, WaitsForTheMessagesFromASlot) {
  const RankPlan plan = PlanOfRank(ProgramNamed("1f1b", 2, 5), 1);
  std::vector<int> user(plan.slots, -1);
  std::vector<size_t> sent(plan.slots);  // the node that sends its gradient
  int reused = 0;
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    const auto& [action, after, slot, is_awaited, is_first] = plan.nodes[i];
    if (action.micro_batch < 0) continue;
    if (user[slot] >= 0 && user[slot] != action.micro_batch) {
      EXPECT_THAT(after, testing::Contains(sent[slot])) << ToText(action);
      ++reused;
    }
    user[slot] = action.micro_batch;
    if (action.kind == StepKind::kSendGradient) sent[slot] = i;
  }
  EXPECT_EQ(reused, 3);  // 5 micro-batches in 2 slots
}

// The last stage's tied tensor is in its first unit of backward, and the first stage's is ready at the end.
TEST(PlanRank, DoesNotKeepComputationWaitingForTiedTensors) {
  const ModelCut cut{{2, 2}, {{1, 0}, {1, 0}}, {{0, 0}, {1, 1}}};
  const StepProgram lowered = *LowerProgram(ProgramNamed("1f1b", 2, 2), cut);
  const RankPlan plan = PlanRank(WalkProgram(lowered)->nodes[1]);
  size_t tied = 0, waits = 0;
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    const auto& [action, after, slot, is_awaited, is_first] = plan.nodes[i];
    if (action.kind == StepKind::kReduceTied) tied = i;
    if (std::ranges::count(after, tied) == 0 || tied == 0) continue;
    ++waits;
    EXPECT_EQ(action.kind, StepKind::kReduceGradient);
    for (size_t later = i; later < plan.nodes.size(); ++later) {
      EXPECT_NE(plan.nodes[later].action.kind, StepKind::kBackward);
    }
  }
  EXPECT_GE(waits, 1) << TextOf(plan);
}

// Of the first such node, at `from` or later.
size_t PlaceOf(const RankPlan& plan, const StepAction& action, size_t from = 0) {
  for (size_t i = from; i < plan.nodes.size(); ++i) {
    if (plan.nodes[i].action == action) return i;
  }
  ADD_FAILURE() << ToText(action);
  return 0;
}

// Three units: each is gathered while the one before it is computed, and not before what it waits for.
TEST(PlanRank, GathersWeightsOneUnitAhead) {
  const ModelCut cut{{3, 3}, {{2, 1, 0}, {2, 1, 0}}, {}};
  const StepProgram lowered =
      *LowerProgram(ProgramNamed("gpipe", 2, 2), cut, {.reduce_always = true, .shard_weights = true});
  std::vector<StepNode> nodes = WalkProgram(lowered)->nodes[1];
  const StepAction second{StepKind::kUnshard, 1, 1}, first_again{StepKind::kUnshard, 1, 0};
  const StepAction last_forward{StepKind::kForward, 1, 2, 0};
  {
    const RankPlan plan = PlanRank(nodes);
    EXPECT_LT(PlaceOf(plan, second), PlaceOf(plan, {StepKind::kForward, 1, 0, 0})) << TextOf(plan);
    EXPECT_LT(PlaceOf(plan, first_again, PlaceOf(plan, second)), PlaceOf(plan, last_forward)) << TextOf(plan);
    for (size_t i = 0; i < plan.nodes.size(); ++i) {
      for (const size_t before : plan.nodes[i].after) {
        EXPECT_LT(before, i);
        EXPECT_NE(plan.nodes[before].action.kind, StepKind::kUnshard) << "waited for by the strategy";
      }
    }
  }
  // The first and the last unit use the same block.
  const auto node = [&](const StepAction& action, size_t from) {
    while (!(nodes[from].action == action)) ++from;
    return from;
  };
  const size_t use = node(last_forward, 0);
  nodes[node(first_again, use)].after.push_back(static_cast<int>(use));
  const RankPlan plan = PlanRank(nodes);
  const size_t gathered = PlaceOf(plan, first_again, PlaceOf(plan, second));
  EXPECT_GT(gathered, PlaceOf(plan, last_forward)) << TextOf(plan);
  EXPECT_LT(gathered, PlaceOf(plan, {StepKind::kForward, 1, 0, 1})) << TextOf(plan);
}

// Both are on the strategy's lane, and with one stage a backward pass waits for the last reduction but one.
TEST(PlanRank, GathersWeightsOfOneStageAfterEarlierReductions) {
  const ModelCut cut{{3}, {{2, 1, 0}}, {}};
  const StepProgram lowered =
      *LowerProgram(ProgramNamed("single_stage", 1, 1), cut, {.reduce_always = true, .shard_weights = true});
  const std::vector<StepNode> nodes = WalkProgram(lowered)->nodes[0];
  const StepAction first{StepKind::kUnshard, 0, 0}, reduction{StepKind::kReduceGradient, 0, 2};
  for (const bool reductions_first : {true, false}) {
    const RankPlan plan = PlanRank(nodes, reductions_first);
    ASSERT_EQ(plan.nodes.size(), nodes.size());
    EXPECT_EQ(plan.slots, 1);
    const size_t again = PlaceOf(plan, first, PlaceOf(plan, first) + 1);
    EXPECT_EQ(again > PlaceOf(plan, reduction), reductions_first) << TextOf(plan);
    EXPECT_GT(again, PlaceOf(plan, {StepKind::kBackward, 0, 2, 0})) << TextOf(plan);
    EXPECT_LT(again, PlaceOf(plan, {StepKind::kBackward, 0, 1, 0})) << TextOf(plan);
    EXPECT_LT(PlaceOf(plan, {StepKind::kUnshard, 0, 1}), PlaceOf(plan, {StepKind::kForward, 0, 0, 0}));
  }
}

TEST(PlanRank, MarksTheNodesThatOthersWaitFor) {
  for (const char* name : {"1f1b", "pipedream"}) {
    const RankPlan plan = PlanOfRank(ProgramNamed(name, 2, 3), 1);
    std::set<size_t> awaited, marked;
    for (size_t i = 0; i < plan.nodes.size(); ++i) {
      awaited.insert(plan.nodes[i].after.begin(), plan.nodes[i].after.end());
      if (plan.nodes[i].is_awaited) marked.insert(i);
    }
    EXPECT_EQ(marked, awaited) << TextOf(plan);
    EXPECT_GT(marked.size(), 0);
    EXPECT_LT(marked.size(), plan.nodes.size());
  }
}

// By "1f1b" once in a step, and without a flush once in each update of two micro-batches.
TEST(PlanRank, BeginsASumOfGradientsForEachUpdate) {
  for (const auto& [name, begins] :
       {std::pair{"1f1b", std::set<int>{0}}, {"zb-h1", {0}}, {"pipedream-2bw", {0, 2, 4}}}) {
    const RankPlan plan = PlanOfRank(ProgramNamed(name, 2, 5), 1);
    std::map<StepKind, std::set<int>> first;
    for (const PlannedNode& node : plan.nodes) {
      if (node.is_first) first[node.action.kind].insert(node.action.micro_batch);
    }
    EXPECT_EQ(first.size(), name == std::string("zb-h1") ? 2 : 1) << TextOf(plan);
    for (const auto& [kind, micro_batches] : first) EXPECT_EQ(micro_batches, begins) << TextOf(plan);
  }
}

TEST(BucketsOfLayers, MayBeSeveralOfOneLayer) {
  const std::vector<Bucket> buckets = {{0, 48, 16}, {1, 0, 32}, {2, 32, 16}};
  const auto of_layers = BucketsOfLayers({{0, 48}, {}, {48, 16}}, buckets);
  EXPECT_THAT(of_layers, ElementsAre(BucketRange(1, 3), BucketRange(0, 0), BucketRange(0, 1)));
  const StepUnits units = PlanUnits({{0, 48}, {}, {48, 16}}, buckets);
  EXPECT_EQ(UsedBesideOthers(units, of_layers, 3), (std::vector<bool>{false, true, true}));
  // The first layer's unit shares elements 0 to 31 with another stage.
  EXPECT_EQ(WithTied(units, buckets, {{0, 32}}), (std::vector<bool>{false, true, true}));
  EXPECT_EQ(WithTied(units, buckets, {}), (std::vector<bool>(3)));
}

TEST(PlanRank, WithoutAFlushAnUpdateWaitsForTiedTensors) {
  const ModelCut cut{{1, 1}, {{0}, {0}}, {{0, 0}, {1, 0}}};
  const StepProgram lowered = *LowerProgram(ProgramNamed("pipedream", 2, 3), cut);
  const RankPlan plan = PlanRank(WalkProgram(lowered)->nodes[1]);
  int waits = 0;
  for (const PlannedNode& node : plan.nodes) {
    if (node.action.kind != StepKind::kReduceGradient) continue;
    ASSERT_EQ(node.after.size(), 1u) << TextOf(plan);
    const StepAction tied{StepKind::kReduceTied, 1, 0, node.action.micro_batch};
    EXPECT_EQ(plan.nodes[node.after[0]].action, tied) << TextOf(plan);
    ++waits;
  }
  EXPECT_EQ(waits, 3);
}

TEST(PlanUnits, BeginsThemWithStages) {
  const std::vector<ReadyRange> complete = {{0, 16}, {16, 16}, {32, 16}, {48, 16}};
  const std::vector<LayerRange> stages = {{0, 2}, {2, 4}};
  // One bucket of everything ends in the first stage.
  const std::vector<Bucket> buckets = CutBuckets({{0, 0, 64}}, complete, stages);
  ASSERT_EQ(buckets.size(), 2);
  EXPECT_THAT(buckets, ElementsAre(testing::AllOf(Field(&Bucket::index, 0), Field(&Bucket::first, 32)),
                                   testing::AllOf(Field(&Bucket::index, 1), Field(&Bucket::first, 0))));
  EXPECT_THAT(buckets, Each(Field(&Bucket::count, 32)));
  const StepUnits units = PlanUnits(complete, buckets, stages);
  EXPECT_THAT(units.stages, ElementsAre(0, 1));
  EXPECT_THAT(units.BucketEnds(0), ElementsAre(0));
  EXPECT_THAT(units.BucketEnds(1), ElementsAre(0));
}

// As the tied tensor of a transformer is: declared first, and a part of the last layer.
TEST(PlanUnits, PutsABucketOfSeveralStagesInOrder) {
  const std::vector<ReadyRange> complete = {{16, 16}, {}, {32, 16}, {0, 16}};
  const std::vector<LayerRange> stages = {{0, 1}, {1, 2}, {2, 4}};
  const std::vector<Bucket> buckets = CutBuckets({{0, 0, 48}}, complete, stages);
  std::vector<size_t> firsts;
  for (const Bucket& bucket : buckets) firsts.push_back(bucket.first);
  EXPECT_THAT(firsts, ElementsAre(0, 32, 16));
  const StepUnits units = PlanUnits(complete, buckets, stages);
  EXPECT_THAT(units.BucketEnds(1), IsEmpty()) << "no weights";
  EXPECT_EQ(units.units_of(2), 2);
}

TEST(CutBuckets, GivesTiedTensorsBucketsOfTheirOwn) {
  const std::vector<ReadyRange> tied = {{0, 16}}, first = {{0, 32}, {32, 32}},
                                last = {{16, 16}, {32, 16}, {0, 16}};
  for (const auto& [complete, end] : {std::pair(first, size_t{64}), {last, size_t{48}}}) {
    const std::vector<LayerRange> stages = {{0, complete.size()}};
    const std::vector<Bucket> buckets = CutBuckets({{0, 0, end}}, complete, stages, tied);
    ASSERT_EQ(buckets.size(), 2);
    EXPECT_EQ(buckets[0].first, 0);
    EXPECT_EQ(buckets[0].count, 16);
    EXPECT_EQ(buckets[1].first, 16);
    EXPECT_EQ(buckets[1].count, end - 16);
    EXPECT_EQ(PlanUnits(complete, buckets, stages).buckets.front().second, 2);
  }
}

TEST(CutModel, FindsTheTensorsThatTheFirstAndTheLastStageShare) {
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const TrainingOptions options = TinyGpt("single");
  const std::unique_ptr<Ops> ops = *MakeOps(*device, /*threads=*/1, Precision::kFloat32);
  const auto make = [&](const TensorPlace&) {
    return ModelOf(options)->make(SmallText().train.spec(), *ops);
  };
  const std::vector<size_t> points = (*make({}))->CutPoints();
  for (const int position : {0, 1}) {
    const PipelinePlace place{.position = position, .positions = 2};
    const absl::StatusOr<ModelPart> part = CutModel(make, {points[points.size() / 2]}, place);
    ASSERT_TRUE(part.ok()) << part.status();
    ASSERT_EQ(part->tied.size(), 1);
    const Tensor& tensor = part->model->parameters().tensors()[0];
    EXPECT_EQ(tensor.name, "transformer.wte.weight");
    EXPECT_EQ(part->tied[0].first, tensor.first);
    EXPECT_EQ(part->tied[0].count, tensor.space);
    EXPECT_EQ(part->counted_elsewhere.size(), position);
    EXPECT_EQ(part->parts.size(), 2);
    EXPECT_EQ(part->cut_points.size(), position == 0 ? points.size() / 2 : points.size() - points.size() / 2);
    for (const size_t point : part->cut_points) EXPECT_LT(point, part->model->layers());
  }
  EXPECT_EQ(CutModel(make, {}, {.position = 0, .positions = 2}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(MeasureLayers, TimesEveryLayer) {
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const std::unique_ptr<Ops> ops = *MakeOps(*device, /*threads=*/1, Precision::kFloat32);
  const std::unique_ptr<Stream> compute = device->NewStream(StreamKind::kCompute, "compute");
  const TrainingOptions options = SmallOptions("single");
  const std::unique_ptr<Model> model = *ModelOf(options)->make(SmallData().train.spec(), *ops);
  const auto ns = MeasureLayers(*model, SmallData().train, /*batch=*/4, /*seed=*/1, *device, *compute);
  ASSERT_TRUE(ns.ok()) << ns.status();
  EXPECT_EQ(ns->size(), model->layers());
  EXPECT_GT(*std::ranges::min_element(*ns), 0);
}

}  // namespace
}  // namespace psring
