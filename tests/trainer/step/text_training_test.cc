// Transformers on texts, with servers and all-reduce.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/trainer/kept_training.h"
#include "trainer/virtual_clock/virtual_training.h"

namespace psring {
namespace {

TEST(TextTraining, ADeterministicServerEqualsOneProcessBitForBit) {
  TrainingOptions options = TinyGpt("ps-sync");
  options.deterministic = true;
  ExpectOneProcess(options, 2, SmallText());
}

TEST(TextTraining, AllReduceAddsTheSameGradient) {
  TrainingOptions options = TinyGpt("ring");
  options.optimizer = "sgd";
  ExpectOneProcess(options, 2, SmallText(), 1e-4);
}

// Beyond an epoch, which has 10 steps of 2 x 64 samples.
TrainingOptions WithDropout(const std::string& strategy) {
  TrainingOptions options = TinyGpt(strategy);
  options.dropout = .3;
  options.batch = 64;
  options.steps = 14;
  return options;
}

TEST(Dropout, DropsTheSameWhereverASampleIsComputed) {
  TrainingOptions server = WithDropout("ps-sync"), replicas = WithDropout("data-parallel"), without = server;
  replicas.replicas = 2;
  server.deterministic = true;
  without.dropout = 0;
  ExpectOneProcess(server, 2, SmallText());
  ExpectOneProcess(replicas, 1, SmallText());
  const std::vector<float>& expected = OneProcess(server, 2, SmallText()).weights;
  EXPECT_NE(OneProcess(without, 2, SmallText()).weights, expected);
  server.clock = "virtual";
  server.compute_ms = "6";
  server.network_ms = "1";
  const std::unique_ptr<Device> device = MakeCpuDevice();
  VirtualRun run{.workers = 2, .device = *device, .data = SmallText()};
  EXPECT_EQ(RunVirtual(server, run).value().weights, expected);
}

TEST(Dropout, DropsTheSameHoweverSamplesAreDividedIntoBatches) {
  TrainingOptions whole = WithDropout("single"), ring = WithDropout("ring"), accumulated = ring;
  whole.optimizer = ring.optimizer = accumulated.optimizer = "sgd";
  whole.batch = 128;
  accumulated.batch = 32;
  accumulated.micro_batches = 2;
  const std::vector<float> expected = WeightsOf(RunRanks(whole, 1, SmallText()));
  EXPECT_LE(RelativeL2(WeightsOf(RunRanks(ring, 2, SmallText())), expected), 1e-4);
  EXPECT_LE(RelativeL2(WeightsOf(RunRanks(accumulated, 2, SmallText())), expected), 1e-4);
  whole.seed = 2;
  EXPECT_GT(RelativeL2(WeightsOf(RunRanks(whole, 1, SmallText())), expected), 1e-3);
}

TEST(Dropout, ContinuesWithTheSameMasksAfterACheckpoint) {
  TrainingOptions options = WithDropout("single");
  options.batch = 128;
  options.checkpoint_dir = "kept";
  options.checkpoint_every = 12;
  KeptSteps kept, more;
  const std::vector<float> expected = WeightsOf(RunKeeping(options, 1, SmallText(), kept));
  EXPECT_EQ(WeightsOf(RunKeeping(options, 1, SmallText(), more, &kept.at(12))), expected);
}

TEST(Dropout, EvaluationDropsNothing) {
  TrainingOptions with = WithDropout("single");
  with.steps = 1;
  with.lr = 1e-30;  // the weights remain the initial ones, except that zeros become tiny
  with.evaluate = true;
  TrainingOptions without = with;
  without.dropout = 0;
  const auto dropped = RunRanks(with, 1, SmallText()), all = RunRanks(without, 1, SmallText());
  ASSERT_LE(RelativeL2(WeightsOf(dropped), WeightsOf(all)), 1e-12);
  EXPECT_NEAR(dropped[0].result->curve.back().test_loss, all[0].result->curve.back().test_loss, 1e-6);
  EXPECT_GT(std::abs(dropped[0].steps[0].loss - all[0].steps[0].loss), 1e-5) << "training drops";
}

TEST(TextTraining, LearnsTheTextAndCountsTokens) {
  TrainingOptions options = TinyGpt("single");
  options.evaluate = true;
  options.steps = 150;
  options.lr = .01;
  const auto outcome = TrainRanks(options, 1, SmallText());
  const RankResult& result = *outcome[0].result;
  const int tokens = SmallText().train.spec().labels;
  EXPECT_EQ(result.samples, 150 * 8 * tokens);
  ASSERT_EQ(result.curve.size(), 1);
  EXPECT_EQ(result.curve[0].samples, 150 * 8 * tokens);
  EXPECT_LT(result.curve[0].test_loss, 1.5) << "per token; ln 26 is 3.3";
  EXPECT_GT(result.curve[0].test_accuracy, .5);
  EXPECT_NEAR(outcome[0].steps.front().loss, std::log(SmallText().train.spec().classes), .2);
}

}  // namespace
}  // namespace psring
