// Residual networks: batch normalization and its running statistics, with servers and all-reduce.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/decode_safetensors.h"
#include "tests/trainer/kept_training.h"

namespace psring {
namespace {

std::vector<RankOutcome> Train(const TrainingOptions& options, int workers) {
  return TrainRanks(options, workers, SmallPictures());
}

double TestLoss(const std::vector<RankOutcome>& outcomes) {
  return outcomes[0].result->curve.back().test_loss;
}

TEST(ResidualTraining, ADeterministicServerEqualsOneProcessBitForBit) {
  for (const char* model : {"resnet18", "resnet50"}) {
    TrainingOptions options = TinyResNet("ps-sync", model);
    options.deterministic = true;
    options.micro_batches = 2;
    ExpectOneProcess(options, 2, SmallPictures());  // running statistics of rank 0's batches
  }
}

TEST(ResidualTraining, ReplicasOfDpEqualMicroBatchesBitForBit) {
  TrainingOptions options = TinyResNet("data-parallel");
  options.replicas = 3;
  ExpectOneProcess(options, 1, SmallPictures());  // running statistics of replica 0's batches
}

TEST(ResidualTraining, AllReduceAddsTheSameGradient) {
  ExpectOneProcess(TinyResNet("ring"), 2, SmallPictures(), 1e-4);
}

// One step of a single process, of three ranks, and of three ranks with shared statistics.
struct OneStep {
  std::vector<RankOutcome> expected, separate, shared;
};
OneStep TrainOneStep(TrainingOptions options) {
  options.steps = 1;
  TrainingOptions single = options, shared = options;
  single.strategy = "single";
  single.batch = 3 * options.batch;
  shared.sync_batch_norm = true;
  return {Train(single, 1), Train(options, 3), Train(shared, 3)};
}

// At so high a rate that only the gradient is left of the weights.
TEST(ResidualTraining, SharedStatisticsGiveTheGradientOfTheGlobalBatch) {
  double nearest = 1;  // with some weights, rounding moves an input of ReLU across 0; not with all of three
  for (const int seed : {1, 2, 3}) {
    TrainingOptions options = TinyResNet("ring");
    options.seed = seed;
    options.lr = 1 << 20;
    options.evaluate = false;
    const OneStep step = TrainOneStep(options);
    nearest = std::min(nearest, RelativeL2(step.shared[2].weights, step.expected[0].weights));
    EXPECT_GT(RelativeL2(step.separate[2].weights, step.expected[0].weights), 1e-2) << "seed " << seed;
    EXPECT_GT(step.shared[0].steps[0].payload_tx_bytes, step.separate[0].steps[0].payload_tx_bytes);
  }
  EXPECT_LE(nearest, 1e-4);
}

// At a rate that changes no weight.
TEST(ResidualTraining, SharedRunningStatisticsAreThoseOfTheGlobalBatch) {
  TrainingOptions options = TinyResNet("ring");
  options.lr = 1e-30;
  const OneStep step = TrainOneStep(options);
  EXPECT_NEAR(TestLoss(step.shared), TestLoss(step.expected), 1e-5);
  EXPECT_GT(std::abs(TestLoss(step.separate) - TestLoss(step.expected)), 1e-4);
}

TEST(ResidualTraining, RankZeroSendsItsBuffersBeforeEachForwardPass) {
  TrainingOptions options = TinyResNet("ring");
  const auto sent = Train(options, 2);
  options.broadcast_buffers = "false";
  const auto kept = Train(options, 2);
  // A mean and a variance for each channel: of the stem, and of 4 convolutions in each stage, with one more
  // in the first block of all but the first stage.
  const uint64_t channels = 16 + 4 * 16 + 5 * (32 + 64 + 128);
  for (size_t step = 0; step < 5; ++step) {
    EXPECT_EQ(sent[0].steps[step].payload_tx_bytes - kept[0].steps[step].payload_tx_bytes,
              2 * channels * sizeof(float));
    EXPECT_EQ(sent[1].steps[step].payload_rx_bytes - kept[1].steps[step].payload_rx_bytes,
              2 * channels * sizeof(float));
  }
  EXPECT_EQ(sent[0].weights, kept[0].weights);
  EXPECT_EQ(TestLoss(sent), TestLoss(kept));
}

TEST(ResidualTraining, AsynchronousWorkersTrain) {
  const auto outcomes = Train(TinyResNet("ps-async"), 2);
  EXPECT_LT(TestLoss(outcomes), 100);
  EXPECT_GT(TestLoss(outcomes), 0);
}

// After many steps with the same batch, the running statistics are those of the batch.
TEST(ResidualTraining, LearnsABatchAndEvaluatesItByRunningStatistics) {
  DataSplits data = SmallPictures();
  std::vector<int64_t> first(8);
  std::iota(first.begin(), first.end(), 0);
  data.train = data.test = SmallPictures().train.Part(first);
  TrainingOptions options = TinyResNet("single");
  options.steps = 100;
  const auto outcomes = TrainRanks(options, 1, data);
  const CurvePoint& end = outcomes[0].result->curve.back();
  EXPECT_EQ(end.test_accuracy, 1);
  EXPECT_NEAR(end.test_loss, outcomes[0].steps.back().loss, .02);
}

// Runs with and without an interruption after step 3, from a checkpoint.
class ResumedResNet : public testing::TestWithParam<const char*> {};

TEST_P(ResumedResNet, EndsLikeUninterruptedTraining) {
  TrainingOptions options = TinyResNet(GetParam());
  const int workers = options.strategy == "single" ? 1 : 2;
  options.deterministic = absl::StartsWith(options.strategy, "ps-");
  const auto expected = Train(options, workers);
  options.checkpoint_dir = "kept";
  options.checkpoint_every = 3;
  KeptSteps kept, more;
  RunKeeping(options, workers, SmallPictures(), kept);
  EXPECT_EQ(DecodeSafetensors(kept[3][kModelFile]).value().back().name, "layer4.1.bn2.running_var");
  const auto resumed = RunKeeping(options, workers, SmallPictures(), more, &kept[3]);
  EXPECT_EQ(resumed[0].steps.size(), 2);
  EXPECT_EQ(resumed[0].weights, expected[0].weights);
  EXPECT_EQ(TestLoss(resumed), TestLoss(expected));
}

INSTANTIATE_TEST_SUITE_P(Strategies, ResumedResNet, testing::Values("single", "ring", "ps-sync"),
                         [](const auto& info) {
                           return absl::StrCat("after_", std::string(info.param).substr(0, 2));
                         });

TEST(ResidualTraining, SaysWhichStatisticsEvaluationUses) {
  std::vector<std::string> notes;
  RunRanks(TinyResNet("ring"), 2, SmallPictures(), [&notes](Worker& worker) {
    if (worker.rank == 0) worker.on_note = [&notes](const std::string& note) { notes.push_back(note); };
  });
  EXPECT_EQ(notes,
            std::vector<std::string>{
                "BatchNorm: evaluation uses the running statistics of rank 0's batches, which all ranks "
                "receive before every forward pass"});
}

TEST(ResidualTraining, OtherModelsHaveNoStatisticsToShare) {
  TrainingOptions options = SmallOptions("ring");
  options.sync_batch_norm = true;
  EXPECT_EQ(
      RunRanks(options, 1, SmallPictures())[0].result.status().message(),
      "--sync_batch_norm is for models with batch normalization, such as resnet18; omit it for mlp-small");
}

}  // namespace
}  // namespace psring
