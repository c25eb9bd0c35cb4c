// Transformers on texts, with servers and all-reduce.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/trainer/cluster.h"
#include "trainer/data/text.h"

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
  single.micro_batches = 2;
  TrainingOptions server = TinyGpt("ps-sync");
  server.deterministic = true;
  const auto expected = RunRanks(single, 1, TextData()), ranks = RunRanks(server, 2, TextData());
  ASSERT_TRUE(expected[0].result.ok()) << expected[0].result.status();
  ASSERT_TRUE(ranks[0].result.ok()) << ranks[0].result.status();
  EXPECT_EQ(ranks[0].weights, expected[0].weights);
}

TEST(TextTraining, AllReduceAddsTheSameGradient) {
  TrainingOptions single = TinyGpt("single");
  single.micro_batches = 2;
  single.optimizer = "sgd";
  TrainingOptions ring = TinyGpt("ring");
  ring.optimizer = "sgd";
  const auto expected = RunRanks(single, 1, TextData()), ranks = RunRanks(ring, 2, TextData());
  ASSERT_TRUE(expected[0].result.ok()) << expected[0].result.status();
  ASSERT_TRUE(ranks[1].result.ok()) << ranks[1].result.status();
  EXPECT_LE(RelativeL2(ranks[1].weights, expected[0].weights), 1e-4);
  EXPECT_EQ(ranks[0].weights, ranks[1].weights);
}

TEST(TextTraining, LearnsTheTextAndCountsTokens) {
  TrainingOptions options = TinyGpt("single");
  options.evaluate = true;
  options.steps = 150;
  options.lr = .01;
  const auto outcome = RunRanks(options, 1, TextData());
  ASSERT_TRUE(outcome[0].result.ok()) << outcome[0].result.status();
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
