// Trainings that equal another training bit for bit, and trainings in 16 bits that come close to float32.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/trainer/cluster.h"

namespace psring {
namespace {

class DeterministicServer : public testing::TestWithParam<int> {
 protected:
  DeterministicServer() : options_(SmallOptions("ps-sync")) { options_.deterministic = true; }
  void ExpectTheSameBits() const { ExpectOneProcess(options_, GetParam(), SmallData()); }

  TrainingOptions options_;
};

TEST_P(DeterministicServer, EqualsTheReferenceBitForBit) {
  for (const std::string& optimizer : kOptimizers) {
    for (const std::string schedule : {"pipelined", "serial"}) {
      SCOPED_TRACE(optimizer + ", " + schedule);
      options_.optimizer = optimizer;
      options_.ps_schedule = schedule;
      ExpectTheSameBits();
    }
  }
}

TEST_P(DeterministicServer, EqualsTheReferenceOnSeveralServersAndClippedToo) {
  for (int servers = 1; servers <= 3; ++servers) {
    for (const double clip_norm : {0.0, kClipNorm}) {
      SCOPED_TRACE(absl::StrCat(servers, " servers, clipped to ", clip_norm));
      options_.servers = servers;
      options_.clip_norm = clip_norm;
      ExpectTheSameBits();
    }
  }
}

TEST_P(DeterministicServer, EqualsTheReferenceWithAccumulatedAndShortBatches) {
  options_.micro_batches = 3;
  options_.drop_last = "false";
  for (const double clip_norm : {0.0, kClipNorm}) {
    SCOPED_TRACE(absl::StrCat("clipped to ", clip_norm));
    options_.clip_norm = clip_norm;
    ExpectTheSameBits();
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, DeterministicServer, testing::Range(1, 5));

TEST(Wire, ShortTrainingWith16BitsIsCloseToFloat32AndSendsHalf) {
  TrainingOptions options = SmallOptions("ps-sync");
  options.evaluate = true;
  options.servers = 2;
  const auto full = TrainRanks(options, 2, SmallData());
  for (const std::string wire : {"bfloat16", "float16"}) {
    options.wire = wire;
    const auto half = TrainRanks(options, 2, SmallData());
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
      const auto full = TrainRanks(options, 3, SmallData());
      options.precision = "bfloat16";
      if (everything) options.wire = "bfloat16";
      const auto half = TrainRanks(options, 3, SmallData());
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
    const auto first = TrainRanks(options, workers, SmallData());
    const auto second = TrainRanks(options, workers, SmallData());
    options.seed = 2;
    const auto other = TrainRanks(options, workers, SmallData());
    EXPECT_EQ(first[0].weights, second[0].weights) << strategy;
    EXPECT_NE(first[0].weights, other[0].weights) << strategy;
  }
}

TEST(Accumulate, AccumulatedBatchesEqualMicroBatches) {
  TrainingOptions options = SmallOptions("single");
  const std::vector<float>& expected = OneProcess(options, 3, SmallData()).weights;
  options.micro_batches = 3;
  EXPECT_EQ(OneProcess(options, 1, SmallData()).weights, expected);
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
  const auto drifting = TrainRanks(SmallOptions("none"), 2, SmallData());
  EXPECT_NE(drifting[0].weights, drifting[1].weights);
  ExpectOneProcess(SmallOptions("none"), 1, SmallData());
}

}  // namespace
}  // namespace psring
