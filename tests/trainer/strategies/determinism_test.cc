// Trainings that equal another training bit for bit, and trainings in 16 bits that come close to float32.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/trainer/cluster.h"
#include "tests/trainer/strategies/reference.h"

namespace psring {
namespace {

class DeterministicServer : public testing::TestWithParam<int> {};

TEST_P(DeterministicServer, EqualsTheReferenceBitForBit) {
  for (const std::string& optimizer : kOptimizers) {
    for (const std::string schedule : {"pipelined", "serial"}) {
      TrainingOptions options = SmallOptions("ps-sync");
      options.optimizer = optimizer;
      options.deterministic = true;
      options.ps_schedule = schedule;
      const auto outcomes = TrainRanks(options, GetParam(), ReferenceData());
      EXPECT_EQ(outcomes[0].weights, Reference(optimizer, GetParam())) << optimizer << ", " << schedule;
    }
  }
}

TEST_P(DeterministicServer, EqualsTheReferenceOnSeveralServersAndClippedToo) {
  for (int servers = 1; servers <= 3; ++servers) {
    for (const double clip_norm : {0.0, kClipNorm}) {
      TrainingOptions options = SmallOptions("ps-sync");
      options.deterministic = true;
      options.servers = servers;
      options.clip_norm = clip_norm;
      const auto outcomes = TrainRanks(options, GetParam(), ReferenceData());
      EXPECT_EQ(outcomes[0].weights, Reference("momentum", GetParam(), clip_norm))
          << servers << " servers, clipped to " << clip_norm;
    }
  }
}

TEST_P(DeterministicServer, EqualsTheReferenceWithAccumulatedAndShortBatches) {
  for (const double clip_norm : {0.0, kClipNorm}) {
    TrainingOptions options = SmallOptions("ps-sync");
    options.deterministic = true;
    options.clip_norm = clip_norm;
    options.micro_batches = 3;
    options.drop_last = "false";
    const auto outcomes = TrainRanks(options, GetParam(), ReferenceData());
    options.strategy = "single";
    options.reference_workers = GetParam();
    const auto reference = TrainRanks(options, 1, ReferenceData());
    EXPECT_EQ(outcomes[0].weights, reference[0].weights) << "clipped to " << clip_norm;
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, DeterministicServer, testing::Range(1, 5));

TEST(Wire, ShortTrainingWith16BitsIsCloseToFloat32AndSendsHalf) {
  TrainingOptions options = SmallOptions("ps-sync");
  options.evaluate = true;
  options.servers = 2;
  const auto full = TrainRanks(options, 2, ReferenceData());
  for (const std::string wire : {"bfloat16", "float16"}) {
    options.wire = wire;
    const auto half = TrainRanks(options, 2, ReferenceData());
    EXPECT_EQ(half[0].weights, half[1].weights);
    EXPECT_EQ(2 * half[0].steps[5].payload_tx_bytes, full[0].steps[5].payload_tx_bytes);
    EXPECT_EQ(half[0].steps[5].payload_rx_bytes, full[0].steps[5].payload_rx_bytes);
    EXPECT_LE(RelativeL2(half[0].weights, full[0].weights), wire == "float16" ? 1e-4 : 1e-3) << wire;
    EXPECT_NEAR(half[0].result->curve.back().test_accuracy, full[0].result->curve.back().test_accuracy, .02);
  }
}

// Combined: bfloat16 activations and wire, accumulation, clipping, a short last batch.
TEST(BFloat16Training, KeepsReplicasEqualAndEndsCloseToFloat32) {
  if (BFloat16Support() == BFloat16::kNone) GTEST_SKIP() << "no AVX-512";
  for (const std::string strategy : {"ring", "ps-sync"}) {
    for (const bool everything : {false, true}) {
      TrainingOptions options = SmallOptions(strategy);
      options.evaluate = true;
      if (everything) {
        options.micro_batches = 2;
        options.clip_norm = kClipNorm;
        options.drop_last = "false";
      }
      const auto full = TrainRanks(options, 3, ReferenceData());
      options.precision = "bfloat16";
      if (everything) options.wire = "bfloat16";
      const auto half = TrainRanks(options, 3, ReferenceData());
      for (const RankOutcome& outcome : half) {
        EXPECT_EQ(outcome.weights, half[0].weights);
        EXPECT_EQ(outcome.result->ops, "onednn, bfloat16");
      }
      EXPECT_NE(half[0].weights, full[0].weights);
      EXPECT_LE(RelativeL2(half[0].weights, full[0].weights), .02) << strategy;
    }
  }
}

TEST(Determinism, ResultsDependOnlyOnTheSeed) {
  for (const auto& [strategy, workers] : {std::pair{"single", 1}, {"ring", 3}, {"star", 3}}) {
    TrainingOptions options = SmallOptions(strategy);
    const auto first = TrainRanks(options, workers, ReferenceData());
    const auto second = TrainRanks(options, workers, ReferenceData());
    options.seed = 2;
    const auto other = TrainRanks(options, workers, ReferenceData());
    EXPECT_EQ(first[0].weights, second[0].weights) << strategy;
    EXPECT_NE(first[0].weights, other[0].weights) << strategy;
  }
}

TEST(Accumulate, AccumulatedBatchesEqualMicroBatches) {
  TrainingOptions options = SmallOptions("single");
  options.micro_batches = 3;
  const auto accumulated = TrainRanks(options, 1, ReferenceData());
  EXPECT_EQ(accumulated[0].weights, Reference("momentum", 3));
}

TEST(ShortLastBatch, DoesNotDelayAsynchronousWorkers) {
  const DataSplits data = MakeSyntheticData({.height = 8, .width = 8, .train = 33, .test = 10}, /*seed=*/5);
  for (const std::string strategy : {"ps-async", "ps-ssp:1", "none"}) {
    TrainingOptions options = SmallOptions(strategy);
    options.drop_last = "false";
    options.micro_batches = 2;
    options.steps = 0;
    options.epochs = 4;
    const auto outcomes = TrainRanks(options, 3, data);
    size_t steps = 0;
    for (const RankOutcome& outcome : outcomes) steps += outcome.steps.size();
    EXPECT_EQ(steps, 3 * 4 * 1) << strategy;
  }
}

TEST(None, ReplicasDivergeAndASingleOneEqualsSingle) {
  const auto drifting = TrainRanks(SmallOptions("none"), 2, ReferenceData());
  const auto alone = TrainRanks(SmallOptions("none"), 1, ReferenceData());
  const auto single = TrainRanks(SmallOptions("single"), 1, ReferenceData());
  EXPECT_NE(drifting[0].weights, drifting[1].weights);
  EXPECT_EQ(alone[0].weights, single[0].weights);
}

}  // namespace
}  // namespace psring
