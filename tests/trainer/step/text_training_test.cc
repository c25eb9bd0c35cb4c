// Transformers on texts, with servers and all-reduce.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/trainer/kept_training.h"
#include "tests/trainer/strategies/reference.h"
#include "trainer/data/text.h"
#include "trainer/virtual/virtual_training.h"

namespace psring {
namespace {

constexpr int kContext = 8;

const DataSplits& TextData() {
  static const DataSplits data = [] {
    const std::string path = testing::TempDir() + "/text_" + std::to_string(getpid());
    std::ofstream out(path);
    for (int i = 0; i < 300; ++i) out << "one fish, two fish, red fish, blue fish " << i % 7 << "\n";
    out.close();
    const auto read = ReadText(path, kContext);
    std::filesystem::remove(path);
    EXPECT_TRUE(read.ok()) << read.status();
    return *read;
  }();
  return data;
}

TrainingOptions TinyGpt(const std::string& strategy) {
  TrainingOptions options = SmallOptions(strategy);
  options.model = "gpt-nano";
  options.data = "text";
  options.layers = 2;
  options.width = 16;
  options.heads = 2;
  options.context = kContext;
  options.bucket_mb = .01;
  return options;
}

TEST(TextTraining, ADeterministicServerEqualsOneProcessBitForBit) {
  TrainingOptions single = TinyGpt("single");
  single.reference_workers = 2;
  TrainingOptions server = TinyGpt("ps-sync");
  server.deterministic = true;
  const auto expected = TrainRanks(single, 1, TextData()), ranks = TrainRanks(server, 2, TextData());
  EXPECT_EQ(ranks[0].weights, expected[0].weights);
}

TEST(TextTraining, AllReduceAddsTheSameGradient) {
  TrainingOptions single = TinyGpt("single");
  single.reference_workers = 2;
  single.optimizer = "sgd";
  TrainingOptions ring = TinyGpt("ring");
  ring.optimizer = "sgd";
  const auto expected = TrainRanks(single, 1, TextData()), ranks = TrainRanks(ring, 2, TextData());
  EXPECT_LE(RelativeL2(ranks[1].weights, expected[0].weights), 1e-4);
  EXPECT_EQ(ranks[0].weights, ranks[1].weights);
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
  TrainingOptions single = WithDropout("single"), server = WithDropout("ps-sync"),
                  replicas = WithDropout("data-parallel"), without = single;
  single.reference_workers = without.reference_workers = replicas.replicas = 2;
  server.deterministic = true;
  without.dropout = 0;
  const std::vector<float> expected = WeightsOf(RunRanks(single, 1, TextData()));
  EXPECT_EQ(WeightsOf(RunRanks(server, 2, TextData())), expected);
  EXPECT_EQ(WeightsOf(RunRanks(replicas, 1, TextData())), expected);
  EXPECT_NE(WeightsOf(RunRanks(without, 1, TextData())), expected);
  server.clock = "virtual";
  server.compute_ms = "6";
  server.network_ms = "1";
  const std::unique_ptr<Device> device = MakeCpuDevice();
  VirtualRun run{.workers = 2, .device = *device, .data = TextData()};
  EXPECT_EQ(RunVirtual(server, run).value().weights, expected);
}

TEST(Dropout, DropsTheSameHoweverSamplesAreDividedIntoBatches) {
  TrainingOptions whole = WithDropout("single"), ring = WithDropout("ring"), accumulated = ring;
  whole.optimizer = ring.optimizer = accumulated.optimizer = "sgd";
  whole.batch = 128;
  accumulated.batch = 32;
  accumulated.micro_batches = 2;
  const std::vector<float> expected = WeightsOf(RunRanks(whole, 1, TextData()));
  EXPECT_LE(RelativeL2(WeightsOf(RunRanks(ring, 2, TextData())), expected), 1e-4);
  EXPECT_LE(RelativeL2(WeightsOf(RunRanks(accumulated, 2, TextData())), expected), 1e-4);
  whole.seed = 2;
  EXPECT_GT(RelativeL2(WeightsOf(RunRanks(whole, 1, TextData())), expected), 1e-3);
}

TEST(Dropout, ContinuesWithTheSameMasksAfterACheckpoint) {
  TrainingOptions options = WithDropout("single");
  options.batch = 128;
  options.checkpoint_dir = "kept";
  options.checkpoint_every = 12;
  KeptSteps kept, more;
  const std::vector<float> expected = WeightsOf(RunKeeping(options, 1, TextData(), kept));
  EXPECT_EQ(WeightsOf(RunKeeping(options, 1, TextData(), more, &kept.at(12))), expected);
}

TEST(Dropout, EvaluationDropsNothing) {
  TrainingOptions with = WithDropout("single");
  with.steps = 1;
  with.lr = 1e-30;  // the weights remain the initial ones, except that zeros become tiny
  with.evaluate = true;
  TrainingOptions without = with;
  without.dropout = 0;
  const auto dropped = RunRanks(with, 1, TextData()), all = RunRanks(without, 1, TextData());
  ASSERT_LE(RelativeL2(WeightsOf(dropped), WeightsOf(all)), 1e-12);
  EXPECT_NEAR(dropped[0].result->curve.back().test_loss, all[0].result->curve.back().test_loss, 1e-6);
  EXPECT_GT(std::abs(dropped[0].steps[0].loss - all[0].steps[0].loss), 1e-5) << "training drops";
}

TEST(TextTraining, LearnsTheTextAndCountsTokens) {
  TrainingOptions options = TinyGpt("single");
  options.evaluate = true;
  options.steps = 150;
  options.lr = .01;
  const auto outcome = TrainRanks(options, 1, TextData());
  const RankResult& result = *outcome[0].result;
  EXPECT_EQ(result.samples, 150 * 8 * kContext);
  ASSERT_EQ(result.curve.size(), 1);
  EXPECT_EQ(result.curve[0].samples, 150 * 8 * kContext);
  EXPECT_LT(result.curve[0].test_loss, 1.5) << "per token; ln 26 is 3.3";
  EXPECT_GT(result.curve[0].test_accuracy, .5);
  EXPECT_NEAR(outcome[0].steps.front().loss, std::log(TextData().train.spec().classes), .2);
}

}  // namespace
}  // namespace psring
