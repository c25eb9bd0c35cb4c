// zero1 compared with ring: through its interface with made-up gradients, and in training; ranks are threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/device/counting_device.h"
#include "tests/has.h"
#include "tests/trainer/kept_training.h"
#include "tests/trainer/strategies/strategy_rank.h"

namespace psring {
namespace {

// Of rank 0 after a number of steps; the weights of the others are equal.
struct RankState {
  int64_t step = 0;
  std::vector<float> weights;
  std::vector<std::vector<float>> slots;

  static RankState Initial() {
    Random random(/*seed=*/3, 0);
    RankState state;
    for (size_t i = 0; i < kOddCount; ++i) state.weights.push_back(random.Uniform(-1, 1));
    return state;
  }
};

void FillMadeUpGradient(int rank, int64_t step, std::vector<float>& gradient) {
  Random random(/*seed=*/5 + static_cast<uint64_t>(step), static_cast<uint64_t>(rank));
  for (float& element : gradient) element = random.Uniform(-10, 10);
}

UpdateRule MadeUpRule(OptimizerKind kind, double clip_norm = 0) {
  return {.optimizer = {.kind = kind, .no_decay = {{3, 60}, {500, 450}}},
          .schedule = {.base = .01},
          .clip_norm = clip_norm};
}
constexpr OptimizerKind kStateKinds[] = {OptimizerKind::kSgd, OptimizerKind::kMomentum, OptimizerKind::kAdamW,
                                         OptimizerKind::kAdagrad};

// What `steps` steps make of `from`, on each of `workers` ranks.
RankState AdvanceRanks(const std::string& strategy, int workers, const UpdateRule& rule,
                       const RankState& from, int64_t steps) {
  const StrategyRow row = *FindStrategy(strategy);
  const Connections connections = Connect(row, workers, absl::Seconds(10));
  std::vector<RankState> states(static_cast<size_t>(workers));
  OnRanks(workers, [&](int rank) {
    StrategyRank own(row, rank, workers, connections.group(rank), /*client=*/nullptr, rule);
    RankState& state = states[static_cast<size_t>(rank)];
    TrainingState start = own.State();
    start.step = from.step;
    start.has_slots = !from.slots.empty();
    if (rank == 0) {
      std::ranges::copy(from.weights, own.weights.begin());
      for (const std::vector<float>& slot : from.slots) start.slots.emplace_back(slot.data(), slot.size());
    }
    SyncStrategy& sync = *own.strategy.sync;
    state.step = sync.Start(start).value();
    for (; state.step < from.step + steps; ++state.step) {
      FillMadeUpGradient(rank, state.step, own.gradient);
      const absl::StatusOr<StepReport> report = own.Step(state.step, workers);
      ASSERT_TRUE(report.ok()) << report.status();
    }
    state.weights = own.weights;
    if (rank > 0) {
      if (own.strategy.sharded != nullptr) {
        EXPECT_TRUE(own.strategy.sharded->SendState().ok());
      }
      return;
    }
    std::vector<Span> slots;
    state.slots.resize(OptimizerSlots(rule.optimizer.kind).size());
    for (std::vector<float>& slot : state.slots) {
      slot.resize(kOddCount);
      slots.push_back({slot.data(), kOddCount});
    }
    EXPECT_TRUE(sync.Save({state.weights.data(), kOddCount}, slots).value());
    EXPECT_EQ(state.weights, own.weights);
  });
  for (const RankState& state : states) EXPECT_EQ(state.weights, states[0].weights);
  return states[0];
}

TEST(Zero1, MoreRanksStayCloseToARing) {
  for (const int workers : {3, 4, 5}) {
    for (const OptimizerKind kind : kStateKinds) {
      SCOPED_TRACE(absl::StrCat(OptimizerName(kind), " on ", workers));
      const RankState ring = AdvanceRanks("ring", workers, MadeUpRule(kind), RankState::Initial(), 20);
      const RankState zero1 = AdvanceRanks("zero1", workers, MadeUpRule(kind), RankState::Initial(), 20);
      EXPECT_LE(RelativeL2(zero1.weights, ring.weights), 1e-4);
      for (size_t s = 0; s < ring.slots.size(); ++s) {
        EXPECT_LE(RelativeL2(zero1.slots[s], ring.slots[s]), 1e-4);
      }
    }
  }
}

// So small a bound that the update is only the direction of the gradient: each element counts once in the
// norm.
TEST(Zero1, ClipsByTheNormOfTheWholeGradient) {
  for (const int workers : {2, 3, 4}) {
    const UpdateRule rule = MadeUpRule(OptimizerKind::kSgd, /*clip_norm=*/1e-3);
    const RankState ring = AdvanceRanks("ring", workers, rule, RankState::Initial(), 1);
    const RankState zero1 = AdvanceRanks("zero1", workers, rule, RankState::Initial(), 1);
    EXPECT_LE(RelativeL2(zero1.weights, ring.weights), 1e-7);
    EXPECT_NE(zero1.weights, RankState::Initial().weights);
    UpdateRule at_high_rate = rule;
    at_high_rate.schedule.base = 1 << 20;  // only the clipped gradient is left
    std::vector<float> of_ring = AdvanceRanks("ring", workers, at_high_rate, RankState::Initial(), 1).weights;
    std::vector<float> of_zero1 =
        AdvanceRanks("zero1", workers, at_high_rate, RankState::Initial(), 1).weights;
    EXPECT_LE(RelativeL2(of_zero1, of_ring), 1e-6);
    double norm = 0;
    for (const float element : of_zero1) norm += double{element} * element;
    EXPECT_NEAR(std::sqrt(norm) / (1 << 20), 1e-3, 1e-4);
  }
}

TEST(Zero1, ContinuesARingAndIsContinuedByItWithTheSameBits) {
  for (const OptimizerKind kind : kStateKinds) {
    SCOPED_TRACE(OptimizerName(kind));
    const UpdateRule rule = MadeUpRule(kind);
    const RankState middle = AdvanceRanks("ring", 2, rule, RankState::Initial(), 2);
    const RankState end = AdvanceRanks("ring", 2, rule, middle, 3);
    EXPECT_NE(end.weights, middle.weights);
    for (const auto& [before, after] : {std::pair("ring", "zero1"), {"zero1", "ring"}, {"zero1", "zero1"}}) {
      const RankState resumed =
          AdvanceRanks(after, 2, rule, AdvanceRanks(before, 2, rule, RankState::Initial(), 2), 3);
      EXPECT_EQ(resumed.weights, end.weights) << before << " to " << after;
      EXPECT_EQ(resumed.slots, end.slots) << before << " to " << after;
    }
    // Another number of ranks takes the state, too.
    const RankState on_3 = AdvanceRanks("zero1", 3, rule, middle, 0);
    EXPECT_EQ(on_3.weights, middle.weights);
    EXPECT_EQ(on_3.slots, middle.slots);
  }
}

// Bytes of the optimizer's state that the strategy allocates on one rank.
double StateBytesOf(const std::string& strategy, int workers, OptimizerKind kind) {
  const StrategyRow row = *FindStrategy(strategy);
  const Connections connections = Connect(row, workers, absl::Seconds(10));
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const std::unique_ptr<Ops> ops = MakeReferenceOps();
  const std::unique_ptr<Stream> compute = device->NewStream(StreamKind::kCompute, "compute");
  Trace trace(0);
  size_t bytes[2] = {};
  for (const bool has_state : {false, true}) {
    CountingDevice counting(*device);
    const auto made =
        Implement(row, {.rank = workers - 1,
                        .world_size = workers,
                        .device = counting,
                        .ops = *ops,
                        .compute = *compute,
                        .trace = trace,
                        .buckets = {{0, 50'000, 50'003}, {1, 0, 50'000}},
                        .update = {.optimizer = {.kind = has_state ? kind : OptimizerKind::kSgd}},
                        .group = connections.group(workers - 1)});
    EXPECT_TRUE(made.ok()) << made.status();
    bytes[has_state ? 1 : 0] = counting.bytes();
  }
  return static_cast<double>(bytes[1] - bytes[0]);
}

TEST(Zero1, ARankAllocatesItsShareOfTheOptimizerState) {
  for (const int workers : {2, 3, 4}) {
    for (const OptimizerKind kind : {OptimizerKind::kMomentum, OptimizerKind::kAdamW}) {
      const double whole = StateBytesOf("ring", workers, kind), own = StateBytesOf("zero1", workers, kind);
      EXPECT_EQ(whole, 4.0 * 100'003 * static_cast<double>(OptimizerSlots(kind).size()));
      EXPECT_NEAR(own, whole / workers, .01 * whole / workers) << OptimizerName(kind) << " on " << workers;
    }
  }
}

TEST(Zero1, TrainsLikeARingOnTwoRanksAlsoIn16Bits) {
  for (const std::string wire : {"float32", "bfloat16"}) {
    for (const std::string optimizer : {"sgd", "momentum", "adamw"}) {
      SCOPED_TRACE(absl::StrCat(optimizer, ", ", wire));
      TrainingOptions options = SmallOptions("ring");
      options.wire = wire;
      options.optimizer = optimizer;
      options.schedule = "linear";
      const std::vector<float> ring = WeightsOf(TrainRanks(options, 2, SmallData()));
      options.strategy = "zero1";
      for (const RankOutcome& outcome : TrainRanks(options, 2, SmallData())) {
        EXPECT_EQ(outcome.weights, ring);
        EXPECT_EQ(outcome.result->algorithm, "ring");
      }
    }
  }
}

TEST(Zero1, TrainsModelsWithTables) {
  TrainingOptions options = TinyDlrm("ring");
  const auto ring = TrainRanks(options, 2, SmallClicks());
  options.strategy = "zero1";
  const auto zero1 = TrainRanks(options, 2, SmallClicks());
  EXPECT_EQ(zero1[0].weights, ring[0].weights);
  ASSERT_EQ(zero1[0].result->curve.size(), ring[0].result->curve.size());
  if (!ring[0].result->curve.empty()) {
    EXPECT_EQ(zero1[0].result->curve.back().test_loss, ring[0].result->curve.back().test_loss);
  }
}

TEST(Zero1, AllRanksStopWithRank0) {
  TrainingOptions options = SmallOptions("zero1");
  options.checkpoint_dir = "kept";
  KeptSteps kept;
  const auto outcomes = RunKeeping(options, 3, SmallData(), kept, nullptr, [](Worker& worker) {
    worker.stops = [steps = 0, rank = worker.rank]() mutable { return ++steps == (rank == 0 ? 5 : 3); };
  });
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept.begin()->first, 5) << "the others' signals wait for that of rank 0";
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.steps.size(), 5u);
    EXPECT_TRUE(absl::IsCancelled(outcome.result.status())) << outcome.result.status();
    EXPECT_THAT(std::string(outcome.result.status().message()), Has("a checkpoint of step 5"));
  }
}

}  // namespace
}  // namespace psring
