#include "experiments/page/simulated_step.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "common/measure/trace.h"
#include "experiments/page/digests.h"
#include "experiments/run_folder/run_trace.h"
#include "trainer/programs/lower_program.h"
#include "trainer/programs/program_rows.h"

namespace psring {
namespace {

using Json = nlohmann::json;

// The actions of a step of `replicas` replicas, rank p of replica r being p * replicas + r. Forward takes
// `forward_ns`, backward twice as long, a message `message_ns`.
std::vector<TracedAction> Actions(const char* name, int ranks, int micro_batches, int64_t forward_ns,
                                  int64_t message_ns = 0, int replicas = 1, int64_t step = 7) {
  const StepProgram compute = MakeStepProgram(*FindStepProgram(name), ranks, micro_batches).value();
  const StepProgram lowered = LowerProgram(compute, ModelCut::WholeStages(compute.stages())).value();
  GivenDurations durations([=](int /*rank*/, const StepAction& action) -> int64_t {
    if (LaneOf(action.kind) == StepLane::kMessages) return message_ns;
    if (LaneOf(action.kind) != StepLane::kCompute) return 0;
    return action.kind == StepKind::kBackward ? 2 * forward_ns : forward_ns;
  });
  const Walk walk = WalkProgram(lowered, &durations).value();
  std::vector<TracedAction> actions;
  for (int rank = 0; rank < ranks; ++rank) {
    for (size_t i = 0; i < walk.nodes[rank].size(); ++i) {
      StepAction action = walk.nodes[rank][i].action;
      const StepLane lane = LaneOf(action.kind);
      if (lane != StepLane::kCompute && lane != StepLane::kMessages) continue;
      action.unit = -1;
      for (int replica = 0; replica < replicas; ++replica) {
        actions.push_back({rank * replicas + replica, step, {action, walk.times[rank][i]}});
      }
    }
  }
  return actions;
}

TEST(SimulatedStep, WalksTheProgramOfTheTrace) {
  for (const char* name : {"gpipe", "1f1b"}) {
    const auto step = SimulateStep(Actions(name, 4, 8, 1000), 7);
    ASSERT_TRUE(step.has_value()) << name;
    EXPECT_EQ(step->end_ns, (8 + 3) * 3000);  // m + p - 1
    EXPECT_DOUBLE_EQ(step->bubble_ns, 3 * 3000);
    std::map<std::string, int> kinds;
    for (const SimulatedSpan& span : step->spans) ++kinds[span.kind];
    EXPECT_EQ(kinds["forward"], 32);
    EXPECT_EQ(kinds["backward"], 32);
    EXPECT_EQ(kinds["message"], 3 * 2 * 2 * 8);
  }
}

TEST(SimulatedStep, WalksEveryProgram) {
  for (const char* name : {"interleaved:2", "zb-h1"}) {
    EXPECT_TRUE(SimulateStep(Actions(name, 2, 4, 1000), 7).has_value()) << name;
  }
}

TEST(SimulatedStep, HasTheLanesOfTheLaunch) {
  const std::vector<TracedAction> actions = Actions("1f1b", 4, 8, 1000, 1000);
  EXPECT_LT(SimulateStep(actions, 7)->end_ns, SimulateStep(actions, 7, /*copy_streams=*/1)->end_ns);
}

// The last stage waits in every update for the first one's backward pass.
TEST(SimulatedStep, AddsUpATiedTensorInEveryUpdate) {
  const std::vector<TracedAction> actions = Actions("pipedream", 2, 3, 1000);
  EXPECT_EQ(SimulateStep(actions, 7)->end_ns, 4 * 3000);
  EXPECT_EQ(SimulateStep(actions, 7, /*copy_streams=*/2, /*tied_every=*/1)->end_ns, 1000 + 3 * 5000);
}

TEST(SimulatedStep, ComputesWithTheMediansOfAllStepsAndReplicas) {
  // Messages are exposed: one to the last stage and one back.
  std::vector<TracedAction> actions = Actions("1f1b", 2, 1, 1000, 100, /*replicas=*/2);
  EXPECT_EQ(SimulateStep(actions, 7)->end_ns, 2 * 3000 + 2 * 100);
  const auto slower = Actions("1f1b", 2, 1, 3000, 100, 2, /*step=*/8);
  actions.insert(actions.end(), slower.begin(), slower.end());
  const SimulatedStep step = *SimulateStep(actions, 7);
  EXPECT_EQ(step.end_ns, 2 * 6000 + 2 * 100);
  for (const int64_t forward_ns : {1'000'000, 3000}) {  // a first step that takes long
    const auto first = Actions("1f1b", 2, 1, forward_ns, 100, 2, /*step=*/forward_ns);
    actions.insert(actions.end(), first.begin(), first.end());
  }
  EXPECT_EQ(SimulateStep(actions, 7)->end_ns, 2 * 9000 + 2 * 100);
  std::set<int64_t> ranks;
  for (const SimulatedSpan& span : step.spans) ranks.insert(span.rank);
  EXPECT_EQ(ranks, (std::set<int64_t>{0, 2}));  // of the first replica
}

TEST(SimulatedStep, HasNoneOfIncompleteActions) {
  const std::vector<TracedAction> actions = Actions("1f1b", 2, 3, 1000);
  EXPECT_FALSE(SimulateStep(actions, 6).has_value());
  EXPECT_FALSE(SimulateStep({}, 7).has_value());
  EXPECT_FALSE(SimulateStep(Actions("single_stage", 1, 3, 1000), 7).has_value());
  for (size_t i = 0; i < actions.size(); ++i) {
    if (LaneOf(actions[i].timed.action.kind) != StepLane::kCompute) continue;
    std::vector<TracedAction> missing = actions, misplaced = actions, many = actions;
    missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_FALSE(SimulateStep(missing, 7).has_value()) << ToText(actions[i].timed.action);
    misplaced[i].timed.action.stage = 1 << 30;
    EXPECT_FALSE(SimulateStep(misplaced, 7).has_value());
    many[i].timed.action.micro_batch = INT32_MAX;
    EXPECT_FALSE(SimulateStep(many, 7).has_value());
  }
}

// As the trainer records it, in ms of the step.
TEST(SimulatedStep, IsBesideTheMeasuredStepOnThePage) {
  LaunchTrace launch{.name = "single x 2", .strategy = "single", .workers = 2};
  for (int rank = 0; rank < 2; ++rank) {
    Trace trace(rank);
    for (const TracedAction& traced : Actions("1f1b", 2, 2, 1'000'000)) {
      if (traced.rank != rank) continue;
      const auto& [action, time] = traced.timed;
      const SpanKind kind = LaneOf(action.kind) == StepLane::kMessages ? SpanKind::kMessage
                            : action.kind == StepKind::kForward        ? SpanKind::kForward
                                                                       : SpanKind::kBackward;
      trace.Add({.kind = kind,
                 .step = traced.step,
                 .begin_ns = time.begin_ns,
                 .end_ns = time.end_ns,
                 .action = ToText(action)});
    }
    trace.Add({.kind = SpanKind::kBubble,
               .step = 7,
               .begin_ns = 8'000'000,
               .end_ns = 9'000'000 + 1'000'000 * rank});
    trace.Add({.kind = SpanKind::kUnit, .step = 7, .begin_ns = 0, .end_ns = 1000, .action = "0.1F0"});
    launch.ranks.push_back("{\"traceEvents\":[" + ChromeTraceEvents(trace) + "]}");
  }
  const Json json = Json::parse(DigestTrace(TraceJson({launch})))["launches"][0];
  std::map<std::string, Json> measured, simulated;
  for (const Json& span : json["spans"]) {
    EXPECT_NE(span[1], "unit");
    if (span.size() > 5) measured[span[5]] = span;
  }
  for (const Json& span : json["simulated"]["spans"]) simulated[span[5]] = span;
  EXPECT_EQ(measured["1B1"], Json::parse(R"([1.0,"backward",-1.0,5.0,2.0,"1B1"])"));
  EXPECT_EQ(simulated["1B1"], Json::parse(R"([1,"backward",-1,5.0,2.0,"1B1"])"));
  EXPECT_EQ(json["simulated"]["ms"], 9.0);
  EXPECT_EQ(json["simulated"]["bubble_ms"], 3.0);
  EXPECT_EQ(json["simulated"]["measured_bubble_ms"], 1.5);
  launch.tied_every = 1;
  EXPECT_EQ(Json::parse(DigestTrace(TraceJson({launch})))["launches"][0]["simulated"]["ms"], 11.0);
}

}  // namespace
}  // namespace psring
