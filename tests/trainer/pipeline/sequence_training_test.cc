// What is peculiar to training with divided sequences (--cp); divided_training_test.cc has the rest. Ranks
// are threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "experiments/costs/sequence_costs.h"
#include "tests/trainer/cluster.h"
#include "tests/trainer/divided_training.h"
#include "trainer/data/sources.h"
#include "trainer/models/replayed_model.h"

namespace psring {
namespace {

TrainingOptions CutGpt(int ranks, const std::string& strategy = "ring") {
  TrainingOptions options = GptOfFourHeads(strategy);
  options.cp = ranks;
  return options;
}

DataSplits LongText(int context) {
  std::string text;
  while (text.size() < 6000) absl::StrAppend(&text, "one fish, two fish, red fish ", text.size() % 7, "\n");
  return FromText(text, [context](const std::string& path) { return ReadText(path, context); });
}

// The change of the weights, of one step with a rate of 1.
std::vector<float> ChangeOfWeights(const TrainingOptions& options, const std::vector<float>& weights) {
  std::vector<float> gradient;
  for (const auto& [name, change] : ChangesOfTensors(options, weights))
    gradient.insert(gradient.end(), change.begin(), change.end());
  return gradient;
}

class CutSequences : public testing::TestWithParam<const char*> {
 protected:
  TrainingOptions Options(int ranks, const std::string& strategy = "ring") const {
    TrainingOptions options = CutGpt(ranks, strategy);
    options.context_parallel = GetParam();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, CutSequences, testing::Values("ring", "contiguous", "ulysses"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(CutSequences, NeedNoPowerOfTwo) {
  const DataSplits data = LongText(12);
  TrainingOptions options = Options(3);
  options.context = 12;
  options.heads = 3;
  options.width = 12;
  ExpectWeightsOfOneRank(options, 1, 1e-4, data);
}

TEST(SequenceModels, ExchangeInAttentionOnly) {
  const TrainingOptions options = CutGpt(2);
  const ModelRow row = ModelOf(options).value();
  const std::unique_ptr<Ops> ops = MakeOneDnnOps(/*threads=*/1);
  const SampleSpec samples = SmallText().train.spec();
  const auto exchanging = [&](const SampleSpec& of, const SequencePlace& place) {
    const auto model = MakerOfPart(row, /*dropout=*/0, {}, place).value()(of, *ops).value();
    const std::vector<bool> layers = model->ExchangingLayers();
    return std::count(layers.begin(), layers.end(), true);
  };
  EXPECT_EQ(exchanging(samples, {}), 0);
  EXPECT_EQ(exchanging(OfPositions(samples, samples.labels / 2), {.ranks = 2}), options.layers);
}

// The ring rounds the sums of blocks and of gradients, which one rank does not; but each rounding is as large
// as those that 16 bits need anyway.
TEST_P(CutSequences, HaveTheGradientOfOneRankIn16BitsUpToItsRounding) {
  if (BFloat16Support() == BFloat16::kNone) GTEST_SKIP() << "no bfloat16 on this processor";
  TrainingOptions options = Options(1);
  options.steps = 1;
  options.lr = 1;
  const auto exact = ChangeOfWeights(options, OneProcess(options, 1, SmallText()).weights);
  options.precision = "bfloat16";
  const auto expected = ChangeOfWeights(options, OneProcess(options, 1, SmallText()).weights);
  const double rounding = RelativeL2(expected, exact);
  EXPECT_GT(rounding, 1e-4) << "in 16 bits";
  for (const int ranks : {2, 4}) {
    options.cp = ranks;
    const auto own = ChangeOfWeights(options, WeightsOf(RunPipelines(options, 1, SmallText())));
    EXPECT_LE(RelativeL2(own, expected), 2 * rounding) << ranks << " ranks";
  }
}

// As far as 16 bits of gradients change the weights in other tests.
TEST_P(CutSequences, In16BitsTrainLikeOneRankIn16Bits) {
  if (BFloat16Support() == BFloat16::kNone) GTEST_SKIP() << "no bfloat16 on this processor";
  for (const auto& [ranks, pp, tp] : {std::tuple(2, 1, 1), {4, 1, 1}, {2, 2, 1}, {2, 1, 2}}) {
    SCOPED_TRACE(absl::StrCat("--cp ", ranks, " --pp ", pp, " --tp ", tp));
    TrainingOptions options = Options(ranks);
    options.precision = "bfloat16";
    options.pp = pp;
    options.tp = tp;
    if (pp == 2) options.cuts = "1";  // the first stage has no attention
    options.batch = pp == 2 ? 1 : 4;
    options.micro_batches = 2;
    options.recompute = ranks == 4;
    ExpectWeightsOfOneRank(options, 1, 5e-3);
  }
}

TEST_P(CutSequences, OverGlooIn16BitsTrainLikeOneRankIn16Bits) {
  if (!RunsOnThreads(*FindStrategy("gloo"))) GTEST_SKIP() << "no Gloo in this build";
  if (BFloat16Support() == BFloat16::kNone) GTEST_SKIP() << "no bfloat16 on this processor";
  TrainingOptions options = Options(2, "gloo");
  options.precision = "bfloat16";
  ExpectWeightsOfOneRank(options, 1, 5e-3);
}

TEST_P(CutSequences, OfAReplicaCanBeFarApart) {
  TrainingOptions options = Options(2);
  options.rank_order = "dp,cp";
  options.steps = 5;
  ExpectWeightsOfOneRank(options, 2);
}

TEST_P(CutSequences, OfStagesAndSharesTrainLikeOneRank) {
  for (const auto& [pp, tp, replicas] : {std::tuple(1, 2, 1), {2, 1, 2}, {2, 2, 1}}) {
    SCOPED_TRACE(absl::StrCat("--pp ", pp, " --tp ", tp, ", ", replicas, " replicas"));
    TrainingOptions options = Options(2, replicas == 2 ? "zero1" : "ring");
    options.pp = pp;
    options.tp = tp;
    options.micro_batches = 3;
    options.steps = 5;
    options.clip_norm = replicas == 1 ? 0 : 1e-3;
    options.lr = replicas == 1 ? .1 : 10;
    options.check_replicas = true;
    options.evaluate = true;
    options.dropout = .1;
    options.recompute = replicas == 2;
    ExpectWeightsOfOneRank(options, replicas);
  }
}

TEST_P(CutSequences, OfStagesWithoutAFlushEqualWholeSequences) {
  for (const char* program : {"pipedream", "pipedream-2bw"}) {
    SCOPED_TRACE(program);
    TrainingOptions options = Options(1, "single");
    options.pp = 2;
    options.program = program;
    options.cuts = EvenCuts(options, 2);
    options.micro_batches = 5;
    options.steps = 3;
    const std::vector<float> whole = WeightsOf(RunPipelines(options, 1, SmallText()));
    options.strategy = "ring";
    options.cp = 2;
    EXPECT_LE(RelativeL2(WeightsOf(RunPipelines(options, 1, SmallText())), whole), 1e-4);
  }
}

// All ranks have the weights; of the activations each has its positions', and memory for the exchange.
TEST_P(CutSequences, DivideTheActivations) {
  const DataSplits data = LongText(64);
  TrainingOptions options = Options(4);
  options.context = 64;
  options.layers = 16;
  options.batch = 2;
  options.steps = 1;
  const MemoryFigures one = OneProcess(options, 1, data).result->memory;
  for (const RankOutcome& rank : RunPipelines(options, 1, data)) {
    ASSERT_TRUE(rank.result.ok()) << rank.result.status();
    const MemoryFigures &own = rank.result->memory, &predicted = rank.result->predicted_memory;
    EXPECT_EQ(own.params_mb, one.params_mb);
    EXPECT_EQ(own.params_mb, predicted.params_mb);
    EXPECT_EQ(own.activations_mb, predicted.activations_mb);
    EXPECT_NEAR(own.activations_mb / one.activations_mb, .25, .1 * .25);
  }
}

// Beside the gradient, which is that of as many replicas, and the loss of the step.
void ExpectToSendTheory(TrainingOptions options, const std::string& precision) {
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(absl::StrCat(precision, ", ", ranks, " ranks"));
    TrainingOptions replicas = TinyGpt("ring");
    options.cp = ranks;
    options.precision = precision;
    options.steps = replicas.steps = 1;
    replicas.heads = options.heads;
    const auto own = RunPipelines(options, 1, SmallText());
    const auto copies = TrainRanks(replicas, ranks, SmallText());
    double sent = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      ASSERT_TRUE(own[rank].result.ok()) << own[rank].result.status();
      const StepRecord& step = own[rank].steps[0];
      sent += static_cast<double>(step.sequence_tx_bytes);
      EXPECT_EQ(step.payload_tx_bytes - step.sequence_tx_bytes, copies[rank].steps[0].payload_tx_bytes);
    }
    const double values = options.context_parallel == "ulysses" ? UlyssesValues(ranks) : RingValues(ranks);
    const double activation = size_t{1} * options.batch * options.context * options.width;
    const size_t bytes = precision == "bfloat16" ? 2 : 4;
    EXPECT_NEAR(sent / ranks, options.layers * values * activation * bytes, .2 * activation);
  }
}

TEST_P(CutSequences, SendWhatTheTheorySays) { ExpectToSendTheory(Options(2), "float32"); }

TEST_P(CutSequences, SendHalfOfItIn16Bits) {
  if (BFloat16Support() == BFloat16::kNone) GTEST_SKIP() << "no bfloat16 on this processor";
  ExpectToSendTheory(Options(2), "bfloat16");
}

}  // namespace
}  // namespace psring
