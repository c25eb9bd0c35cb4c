// Models with tables: one process, all-reduce strategies.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "common/io/safetensors.h"
#include "tests/trainer/kept_training.h"
#include "tests/trainer/strategies/reference.h"
#include "trainer/data/clicks.h"

namespace psring {
namespace {

const DataSplits& Clicks() {
  static const DataSplits data = MakeClicks({.rows = 300, .alpha = 1, .train = 2000, .test = 200}, 1);
  return data;
}

TrainingOptions SmallDlrm(const std::string& strategy) {
  TrainingOptions options = SmallOptions(strategy);
  options.model = "dlrm-small";
  options.data = "zipf:300:1";
  options.width = 8;
  options.optimizer = "sgd";
  options.lr = .5;
  return options;
}

TEST(TableTraining, LearnsClicks) {
  TrainingOptions options = SmallDlrm("single");
  options.evaluate = true;
  options.batch = 100;
  options.epochs = 15;
  options.steps = 0;
  for (const auto& [optimizer, lr] : {std::pair{"sgd", 1.0}, {"adagrad", .05}, {"adam", .005}}) {
    options.optimizer = optimizer;
    options.lr = lr;
    const auto outcome = TrainRanks(options, 1, Clicks());
    ASSERT_EQ(outcome[0].result->curve.size(), 1);
    EXPECT_LT(outcome[0].result->final_loss, outcome[0].steps.front().loss - .1) << optimizer;
    EXPECT_GT(outcome[0].result->curve[0].test_accuracy, .5) << optimizer;
  }
}

TEST(TableTraining, MicroBatchesComputeTheGradientOfALargeBatch) {
  TrainingOptions whole = SmallDlrm("single"), parts = whole;
  whole.batch *= 3;
  parts.reference_workers = 3;
  const auto expected = TrainRanks(whole, 1, Clicks()), actual = TrainRanks(parts, 1, Clicks());
  ASSERT_EQ(actual[0].weights.size(), expected[0].weights.size());
  EXPECT_LE(RelativeL2(actual[0].weights, expected[0].weights), 1e-4);
}

class TableStrategies : public testing::TestWithParam<const char*> {};

TEST_P(TableStrategies, AllReduceEqualsOneProcess) {
  for (const char* optimizer : {"sgd", "adagrad", "adam"}) {
    for (const int workers : {2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << optimizer << ", " << workers << " workers");
      TrainingOptions single = SmallDlrm("single"), many = SmallDlrm(GetParam());
      single.optimizer = many.optimizer = optimizer;
      single.lr = many.lr = std::string(optimizer) == "sgd" ? .5 : .01;
      single.reference_workers = workers;
      many.check_replicas = true;
      const auto expected = TrainRanks(single, 1, Clicks()), ranks = TrainRanks(many, workers, Clicks());
      for (const RankOutcome& rank : ranks) {
        ASSERT_EQ(rank.weights.size(), expected[0].weights.size());
        EXPECT_LE(RelativeL2(rank.weights, expected[0].weights), 1e-4);
        EXPECT_EQ(rank.weights, ranks[0].weights);
        for (size_t i = 0; i < rank.steps.size(); ++i)
          EXPECT_EQ(rank.steps[i].weights_hash, ranks[0].steps[i].weights_hash) << "step " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, TableStrategies, testing::Values("ring", "direct", "gloo"));

// With two ranks a ring sends the dense gradient once.
TEST(TableTraining, BytesAreThoseOfTheRowsAndOfTheDenseGradient) {
  const auto ranks = TrainRanks(SmallDlrm("ring"), 2, Clicks());
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
    TrainingOptions single = SmallDlrm("single"), ring = SmallDlrm("ring");
    single.optimizer = ring.optimizer = optimizer;
    single.lr = ring.lr = .01;
    single.batch = ring.batch = 4;  // 12 or 16 lookups of 10 rows: some rows are not touched
    single.reference_workers = 3;
    const auto expected = TrainRanks(single, 1, few), ranks = TrainRanks(ring, 3, few);
    EXPECT_GT(ranks[0].result->rows.reduced_bytes, 0);
    EXPECT_LE(RelativeL2(ranks[0].weights, expected[0].weights), 1e-4) << optimizer;
  }
}

TEST(TableTraining, ShortBatchesCountEachSampleOnce) {
  // 2000 samples in steps of 3 * 8: the last step has 8, of which one rank has none.
  TrainingOptions single = SmallDlrm("single"), ring = SmallDlrm("ring");
  single.reference_workers = 3;
  single.drop_last = ring.drop_last = "false";
  single.steps = ring.steps = 0;
  single.epochs = ring.epochs = 1;
  single.batch = ring.batch = 333;
  const auto expected = TrainRanks(single, 1, Clicks()), ranks = TrainRanks(ring, 3, Clicks());
  EXPECT_EQ(expected[0].result->samples, 2000);
  EXPECT_LE(RelativeL2(ranks[1].weights, expected[0].weights), 1e-4);
}

TEST(TableTraining, AccumulatedBatchesAreAddedBeforeWorkers) {
  TrainingOptions single = SmallDlrm("single"), ring = SmallDlrm("ring");
  single.micro_batches = ring.micro_batches = 2;
  single.reference_workers = 2;
  const auto expected = TrainRanks(single, 1, Clicks()), ranks = TrainRanks(ring, 2, Clicks());
  EXPECT_LE(RelativeL2(ranks[0].weights, expected[0].weights), 1e-4);
}

TEST(TableTraining, ContinuesFromACheckpointWithTheSameBits) {
  TrainingOptions options = SmallDlrm("single");
  options.optimizer = "adagrad";
  options.checkpoint_dir = "kept";
  const auto expected = TrainRanks(options, 1, Clicks());
  options.checkpoint_every = 3;
  KeptSteps kept, more;
  RunKeeping(options, 1, Clicks(), kept);
  EXPECT_EQ(FindTensors(kept[3][kModelFile]).value().back().name, "tables.7.weight");
  EXPECT_EQ(WeightsOf(RunKeeping(options, 1, Clicks(), more, &kept[3])), expected[0].weights);
}

TEST(TableTraining, WhatTablesDoNotSupportIsRejected) {
  const auto error_of = [](void (*change)(TrainingOptions&)) {
    TrainingOptions options = SmallDlrm("single");
    change(options);
    return std::string(RunRanks(options, 1, Clicks())[0].result.status().message());
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
