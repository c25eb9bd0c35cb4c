// Models with tables: one process, all-reduce strategies.
#include <gtest/gtest.h>

#include <string>

#include "common/io/safetensors.h"
#include "tests/trainer/kept_training.h"
#include "trainer/data/sources.h"

namespace psring {
namespace {

TEST(TableTraining, LearnsClicks) {
  TrainingOptions options = TinyDlrm("single");
  options.evaluate = true;
  options.batch = 100;
  options.epochs = 15;
  options.steps = 0;
  for (const auto& [optimizer, lr] : {std::pair{"sgd", 1.0}, {"adagrad", .05}, {"adam", .005}}) {
    options.optimizer = optimizer;
    options.lr = lr;
    const auto outcome = TrainRanks(options, 1, SmallClicks());
    ASSERT_EQ(outcome[0].result->curve.size(), 1);
    EXPECT_LT(outcome[0].result->final_loss, outcome[0].steps.front().loss - .1) << optimizer;
    EXPECT_GT(outcome[0].result->curve[0].test_accuracy, .5) << optimizer;
  }
}

TEST(TableTraining, MicroBatchesComputeTheGradientOfALargeBatch) {
  TrainingOptions whole = TinyDlrm("single"), parts = whole;
  whole.batch *= 3;
  parts.reference_workers = 3;
  const auto expected = TrainRanks(whole, 1, SmallClicks()), actual = TrainRanks(parts, 1, SmallClicks());
  ASSERT_EQ(actual[0].weights.size(), expected[0].weights.size());
  EXPECT_LE(RelativeL2(actual[0].weights, expected[0].weights), 1e-4);
}

class TableStrategies : public testing::TestWithParam<const char*> {};

TEST_P(TableStrategies, AllReduceEqualsOneProcess) {
  for (const char* optimizer : {"sgd", "adagrad", "adam"}) {
    for (const int workers : {2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << optimizer << ", " << workers << " workers");
      TrainingOptions options = TinyDlrm(GetParam(), optimizer);
      options.check_replicas = true;
      ExpectOneProcess(options, workers, SmallClicks(), 1e-4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, TableStrategies, testing::Values("ring", "direct", "gloo"));

// With two ranks a ring sends the dense gradient once.
TEST(TableTraining, BytesAreThoseOfTheRowsAndOfTheDenseGradient) {
  const auto ranks = TrainRanks(TinyDlrm("ring"), 2, SmallClicks());
  for (const RankOutcome& rank : ranks) {
    double rows = 0;
    for (const StepRecord& step : rank.steps)
      rows += static_cast<double>(step.payload_tx_bytes - GradientBytes(*rank.result));
    EXPECT_GT(rank.result->rows.gathered_bytes, 0);
    EXPECT_EQ(rank.result->rows.reduced_bytes, 0);
    EXPECT_NEAR(rank.result->rows.gathered_bytes, rows / static_cast<double>(rank.steps.size()), .01);
  }
}

TEST(TableTraining, TablesOfWhichMostRowsAreTouchedAreReducedAsAWhole) {
  const DataSplits few = MakeClicks({.rows = 10, .alpha = 0, .train = 2000, .test = 1}, 1);
  for (const char* optimizer : {"sgd", "adam"}) {
    TrainingOptions options = TinyDlrm("ring", optimizer);
    options.lr = .01;
    options.batch = 4;  // 12 or 16 lookups of 10 rows: some rows are not touched
    EXPECT_GT(ExpectOneProcess(options, 3, few, 1e-4)[0].result->rows.reduced_bytes, 0) << optimizer;
  }
}

TEST(TableTraining, ShortBatchesCountEachSampleOnce) {
  // 2000 samples in steps of 3 * 333: the last step has 2, of which one rank has none.
  TrainingOptions options = TinyDlrm("ring");
  options.drop_last = "false";
  options.steps = 0;
  options.epochs = 1;
  options.batch = 333;
  ExpectOneProcess(options, 3, SmallClicks(), 1e-4);
  EXPECT_EQ(OneProcess(options, 3, SmallClicks()).result->samples, 2000);
}

TEST(TableTraining, AccumulatedBatchesAreAddedBeforeWorkers) {
  TrainingOptions options = TinyDlrm("ring");
  options.micro_batches = 2;
  ExpectOneProcess(options, 2, SmallClicks(), 1e-4);
}

TEST(TableTraining, ContinuesFromACheckpointWithTheSameBits) {
  TrainingOptions options = TinyDlrm("single");
  options.optimizer = "adagrad";
  options.checkpoint_dir = "kept";
  const auto expected = TrainRanks(options, 1, SmallClicks());
  options.checkpoint_every = 3;
  KeptSteps kept, more;
  RunKeeping(options, 1, SmallClicks(), kept);
  EXPECT_EQ(FindTensors(kept[3][kModelFile]).value().back().name, "tables.7.weight");
  EXPECT_EQ(WeightsOf(RunKeeping(options, 1, SmallClicks(), more, &kept[3])), expected[0].weights);
}

TEST(TableTraining, WhatTablesDoNotSupportIsRejected) {
  const auto error_of = [](void (*change)(TrainingOptions&)) {
    TrainingOptions options = TinyDlrm("single");
    change(options);
    return std::string(RunRanks(options, 1, SmallClicks())[0].result.status().message());
  };
  EXPECT_EQ(error_of([](TrainingOptions& o) { o.optimizer = "momentum"; }),
            "--optimizer momentum changes all rows of a table in every step; use sgd, adagrad or adam");
  EXPECT_EQ(
      error_of([](TrainingOptions& o) { o.clip_norm = 1; }),
      "--clip_norm does not support the tables of dlrm-small, whose gradient is never complete; omit it");
  EXPECT_NE(error_of([](TrainingOptions& o) { o.eval_every = 1, o.evaluate = true; }), "");
  EXPECT_NE(error_of([](TrainingOptions& o) {
              o.strategy = "data-parallel";
            }).find("--strategy data-parallel does not support"),
            std::string::npos);
}

}  // namespace
}  // namespace psring
