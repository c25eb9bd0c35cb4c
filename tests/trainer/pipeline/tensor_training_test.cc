// What is peculiar to training with divided matrices and tokens (--tp); divided_training_test.cc has the
// rest. Ranks are threads.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/has.h"
#include "tests/trainer/cluster.h"
#include "tests/trainer/divided_training.h"
#include "trainer/data/sources.h"

namespace psring {
namespace {

TrainingOptions DividedGpt(int ranks, const std::string& strategy = "single") {
  TrainingOptions options = GptOfFourHeads(strategy);
  options.tp = ranks;
  return options;
}

// Ranks divide the tokens, too.
TrainingOptions DividedTokens(int ranks, const std::string& strategy = "single") {
  TrainingOptions options = DividedGpt(ranks, strategy);
  options.sequence_parallel = true;
  return options;
}

TEST(DividedTraining, ClipsByTheNormOfAllParts) {
  for (const int ranks : {2, 4}) {
    for (TrainingOptions options : {DividedGpt(ranks), DividedTokens(ranks)}) {
      ClipEveryStep(options);
      ExpectWeightsOfOneRank(options, 1, 1e-5);
    }
  }
  TrainingOptions clipped = DividedGpt(2), free = clipped;
  clipped.clip_norm = 1e-3;
  EXPECT_GT(RelativeL2(OneProcess(clipped, 1, SmallText()).weights, OneProcess(free, 1, SmallText()).weights),
            1e-3);
}

// `options`: of a ring.
void ExpectBitsOfARing(TrainingOptions options) {
  options.steps = 6;
  options.dropout = .1;
  options.evaluate = true;
  options.eval_every = 3;
  options.check_replicas = true;
  const auto ring = RunPipelines(options, 2, SmallText());
  for (const auto& [strategy, reshard] :
       {std::pair{"zero2", "forward"}, {"fsdp", "forward"}, {"fsdp", "never"}}) {
    SCOPED_TRACE(absl::StrCat(strategy, " --reshard ", reshard));
    TrainingOptions sharded = options;
    sharded.strategy = strategy;
    sharded.reshard = reshard;
    const auto ranks = RunPipelines(sharded, 2, SmallText());
    for (size_t rank = 0; rank < ring.size(); ++rank) {
      ExpectSameTraining(ranks[rank], ring[rank]);
      EXPECT_EQ(ranks[rank].result->weights_hash, ring[rank].result->weights_hash);
    }
  }
}

TEST(DividedTraining, ShardsOfTwoReplicasHaveTheBitsOfARing) { ExpectBitsOfARing(DividedGpt(2, "ring")); }

TEST(DividedTokens, ShardsOfTwoReplicasHaveTheBitsOfARing) { ExpectBitsOfARing(DividedTokens(2, "ring")); }

TEST(DividedTokens, ShardsOfTwoReplicasHaveTheBitsOfARingIn16Bits) {
  if (BFloat16Support() == BFloat16::kNone) GTEST_SKIP() << "no bfloat16 on this processor";
  TrainingOptions options = DividedTokens(2, "ring");
  options.precision = "bfloat16";
  ExpectBitsOfARing(options);
}

TEST(DividedTraining, ShardsOfStagesEqualOneRankUpToRounding) {
  for (const auto& [strategy, reshard] :
       {std::pair{"zero2", "forward"}, {"fsdp", "forward"}, {"fsdp", "never"}}) {
    SCOPED_TRACE(absl::StrCat(strategy, " --reshard ", reshard));
    TrainingOptions options = DividedGpt(2, strategy);
    options.sequence_parallel = reshard == std::string("never");
    options.reshard = reshard;
    options.pp = 2;
    options.micro_batches = 3;
    options.steps = 5;
    ClipEveryStep(options);
    options.check_replicas = true;
    ExpectWeightsOfOneRank(options, 2);
  }
}

TEST(DividedTraining, ARankHasItsPartOfTheStateAndOfTheActivations) {
  TrainingOptions options = DividedGpt(4);
  options.optimizer = "adam";
  options.lr = .01;
  options.steps = 2;
  const MemoryFigures one = OneProcess(options, 1, SmallText()).result->memory;
  for (const RankOutcome& rank : RunPipelines(options, 1, SmallText())) {
    ASSERT_TRUE(rank.result.ok()) << rank.result.status();
    const MemoryFigures &own = rank.result->memory, &predicted = rank.result->predicted_memory;
    EXPECT_EQ(own.params_mb, predicted.params_mb);
    EXPECT_EQ(own.grads_mb, predicted.grads_mb);
    EXPECT_EQ(own.optimizer_mb, predicted.optimizer_mb);
    EXPECT_EQ(own.activations_mb, predicted.activations_mb);
    EXPECT_LT(own.params_mb, .35 * one.params_mb);
    EXPECT_LT(own.optimizer_mb, .35 * one.optimizer_mb);
    EXPECT_LT(own.activations_mb, .8 * one.activations_mb) << "norms and residuals are not divided";
  }
}

// Beside the sums' two halves the ranks gather the inputs of each divided matrix once more, and add up the
// gradients of two norms in each block and of the last one.
TEST(DividedTokens, SendTheInputsOnceMore) {
  TrainingOptions options = DividedGpt(2);
  options.steps = 3;
  options.micro_batches = 2;
  const auto sums = RunPipelines(options, 1, SmallText());
  options.sequence_parallel = true;
  const auto parts = RunPipelines(options, 1, SmallText());
  const int64_t times = 2 * options.layers + 1, width = options.width,
                rows = int64_t{options.batch} * options.context;
  for (const int rank : {0, 1}) {
    ASSERT_TRUE(sums[rank].result.ok() && parts[rank].result.ok()) << parts[rank].result.status();
    const int64_t more = static_cast<int64_t>(parts[rank].steps[1].payload_tx_bytes) -
                         static_cast<int64_t>(sums[rank].steps[1].payload_tx_bytes);
    EXPECT_EQ(more, options.micro_batches * times * (rows * width / 2 + 2 * width) *
                        static_cast<int64_t>(sizeof(float)));
  }
}

TEST(DividedTokens, ARankHasItsPartOfAllActivations) {
  for (const int stages : {1, 2}) {
    SCOPED_TRACE(stages);
    TrainingOptions options = DividedGpt(4);
    options.pp = stages;
    options.cuts = stages == 1 ? "" : "8";  // before the second block
    options.micro_batches = stages;
    options.steps = 2;
    const auto sums = RunPipelines(options, 1, SmallText());
    options.sequence_parallel = true;
    const auto parts = RunPipelines(options, 1, SmallText());
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      ASSERT_TRUE(parts[rank].result.ok()) << parts[rank].result.status();
      const MemoryFigures &own = parts[rank].result->memory,
                          &predicted = parts[rank].result->predicted_memory;
      EXPECT_EQ(own.params_mb, sums[rank].result->memory.params_mb);
      EXPECT_EQ(own.activations_mb, predicted.activations_mb);
      EXPECT_LT(own.activations_mb, .85 * sums[rank].result->memory.activations_mb);
    }
  }
}

// As far as 16 bits of gradients change the weights in other tests.
TEST(DividedTraining, In16BitsIsCloseToOneRankIn16Bits) {
  if (BFloat16Support() == BFloat16::kNone) GTEST_SKIP() << "no bfloat16 on this processor";
  for (const bool divides_tokens : {false, true}) {
    for (const bool recomputes : {false, true}) {
      SCOPED_TRACE(absl::StrCat(divides_tokens ? "tokens" : "", recomputes ? " recompute" : ""));
      TrainingOptions options = DividedGpt(2);
      options.precision = "bfloat16";
      options.sequence_parallel = divides_tokens;
      options.recompute = recomputes;
      options.micro_batches = 2;
      ExpectWeightsOfOneRank(options, 1, 5e-3);
    }
  }
  TrainingOptions options = DividedTokens(2, "ring");
  options.precision = "bfloat16";
  options.pp = 2;
  options.micro_batches = 2;
  options.steps = 5;
  ExpectWeightsOfOneRank(options, 2, 5e-3);
}

// Servers of both shares add up the gradients of norms, of three replicas in the same order.
TEST(DividedTraining, WithServersOfEachShareEqualsOneRankUpToRounding) {
  for (const int replicas : {1, 2, 3}) {
    SCOPED_TRACE(replicas);
    TrainingOptions options = DividedGpt(2, "ps-sync");
    options.servers = replicas == 2 ? 2 : 1;
    options.sequence_parallel = replicas == 2;
    options.check_replicas = true;
    ExpectWeightsOfOneRank(options, replicas);
  }
  TrainingOptions options = DividedGpt(2, "ps-sync");
  options.pp = 2;
  options.micro_batches = 2;
  options.steps = 5;
  options.check_replicas = true;
  ExpectWeightsOfOneRank(options, 2);
}

TEST(DividedTraining, WithServersResumes) {
  TrainingOptions options = DividedGpt(2, "ps-sync");
  options.optimizer = "momentum";
  options.steps = 4;
  ExpectToResumeWithTheSameBits(options, 3, SmallText());
}

// Of three replicas all shares add up the gradients of what they have copies of, such as norms, in the same
// order, although their parts of the vocabulary differ; so a checkpoint, which has one copy, continues with
// the bits of an uninterrupted run.
TEST(DividedTraining, OfReplicasResumes) {
  for (const auto& [strategy, replicas] :
       {std::pair{"zero1", 2}, {"zero1", 3}, {"zero2", 3}, {"fsdp", 2}, {"ring", 3}}) {
    SCOPED_TRACE(absl::StrCat(strategy, ", ", replicas, " replicas"));
    TrainingOptions options = DividedGpt(2, strategy);
    options.optimizer = "momentum";
    options.steps = 4;
    ExpectToResumeWithTheSameBits(options, replicas, SmallText());
  }
}

TEST(DividedTraining, AVocabularyWithoutATokenForEachRankIsRejected) {
  const DataSplits two_letters = FromText(std::string(400, 'a') + std::string(400, 'b'),
                                          [](const std::string& path) { return ReadText(path, 8); });
  for (const RankOutcome& rank : RunPipelines(DividedGpt(4), 1, two_letters)) {
    EXPECT_THAT(rank.result.status(),
                Fails(absl::StatusCode::kInvalidArgument, "--tp 4: a vocabulary of 2 tokens"));
  }
}

}  // namespace
}  // namespace psring
