// One process with replicas: the same bits as without, and exactly the traffic of DataParallel.

#include <gtest/gtest.h>

#include "tests/has.h"
#include "tests/trainer/cluster.h"

namespace psring {
namespace {

TrainingOptions Replicated(int replicas) {
  TrainingOptions options = SmallOptions("data-parallel");
  options.replicas = replicas;
  return options;
}

class Replicas : public testing::TestWithParam<int> {
 protected:
  TrainingOptions options_ = Replicated(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Counts, Replicas, testing::Range(1, 6));

TEST_P(Replicas, EqualOneProcessThatAddsAsManyBatches) {
  for (const std::string& optimizer : kOptimizers) {
    for (const double clip_norm : {0.0, kClipNorm}) {
      SCOPED_TRACE(testing::Message() << optimizer << ", clipped to " << clip_norm);
      options_.optimizer = optimizer;
      options_.clip_norm = clip_norm;
      ExpectOneProcess(options_, 1, SmallData());
    }
  }
}

TEST_P(Replicas, ComputeInBFloat16LikeOneProcess) {
  if (BFloat16Support() == BFloat16::kNone) GTEST_SKIP() << "no AVX-512";
  options_.precision = "bfloat16";
  ExpectOneProcess(options_, 1, SmallData());
}

TEST_P(Replicas, ShareAShortLastBatchOfWhichSomeGetNothing) {
  for (const int train : {5, 33, 37}) {
    SCOPED_TRACE(train);
    const DataSplits data = MakeSyntheticData({.height = 8, .width = 8, .train = train, .test = 10}, 5);
    options_.drop_last = "false";
    options_.steps = 0;
    options_.epochs = 3;
    EXPECT_EQ(ExpectOneProcess(options_, 1, data)[0].result->samples, 3 * train);
  }
}

TEST_P(Replicas, AccumulateAndEvaluateLikeOneProcess) {
  options_.micro_batches = 3;
  options_.evaluate = true;
  options_.eval_every = 10;
  const RankResult result = *ExpectOneProcess(options_, 1, SmallData(), 1e-5)[0].result;
  EXPECT_EQ(result.global_batch, 3 * GetParam() * options_.batch);
  ASSERT_EQ(result.curve.size(), 2);
  EXPECT_NEAR(result.curve[1].test_accuracy,
              OneProcess(options_, 1, SmallData()).result->curve[1].test_accuracy, .02);
}

TEST_P(Replicas, MoveEachKindOfTrafficExactlyOncePerStep) {
  options_.warmup_steps = 2;
  const RankOutcome outcome = TrainRanks(options_, 1, SmallData())[0];
  const DataParallelFigures& figures = outcome.result->data_parallel;
  const double others = GetParam() - 1;
  const double gradient = static_cast<double>(GradientBytes(*outcome.result));
  EXPECT_EQ(figures.replicas, GetParam());
  EXPECT_NEAR(figures.inputs_bytes, others * 8 * 64 * 4, 1e-6) << "8 images of 8x8";
  EXPECT_NEAR(figures.weights_bytes, others * gradient, 1e-6 * gradient);
  EXPECT_NEAR(figures.outputs_bytes, others * 8 * 10 * 4, 1e-6) << "10 classes";
  EXPECT_NEAR(figures.output_gradients_bytes, figures.outputs_bytes, 1e-6);
  EXPECT_NEAR(figures.gradients_bytes, others * gradient, 1e-6 * gradient);
  EXPECT_GT(figures.compute_ms, 0);
  EXPECT_GT(figures.device0_alone_ms(), 0);
  // Momentum is a copy of the weights that only device 0 has.
  EXPECT_GT(figures.device0_extra_mb * (1 << 20), gradient);
  for (const StepRecord& step : outcome.steps) {
    EXPECT_EQ(static_cast<double>(step.payload_tx_bytes), others * (gradient + 8 * 64 * 4 + 8 * 10 * 4));
    EXPECT_EQ(static_cast<double>(step.payload_rx_bytes), others * (gradient + 8 * 10 * 4));
    EXPECT_LE(step.compute_ms + step.exposed_comm_ms, step.step_ms);
    EXPECT_GT(step.compute_ms, 0);
  }
}

TEST(DataParallelRefuses, UnsupportedFlagsInOneLine) {
  const auto refusal = [](void (*change)(TrainingOptions&)) {
    TrainingOptions options = Replicated(2);
    change(options);
    return std::string(RunRanks(options, 1, SmallData())[0].result.status().message());
  };
  EXPECT_THAT(refusal([](TrainingOptions& o) { o.straggler = "1:3"; }), Has("--straggler"));
  EXPECT_THAT(refusal([](TrainingOptions& o) { o.wire = "float16"; }), Has("--wire"));
  EXPECT_THAT(refusal([](TrainingOptions& o) { o.reference_workers = 2; }), Has("--reference_workers"));
  EXPECT_THAT(refusal([](TrainingOptions& o) { o.strategy = "ring"; }), Has("--workers is for"));
  EXPECT_THAT(refusal([](TrainingOptions& o) { o.batch = 1000; }), Has("larger than the data"));
}

}  // namespace
}  // namespace psring
