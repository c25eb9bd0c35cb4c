// Training of a transformer whose matrices several ranks divide equals that of one rank, up to the order of
// additions. Ranks are threads.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/has.h"
#include "tests/trainer/cluster.h"
#include "tests/trainer/divided_training.h"
#include "tests/trainer/kept_training.h"
#include "trainer/data/sources.h"
#include "trainer/models/replayed_model.h"

namespace psring {
namespace {

// With SGD: Adam would make large steps of those gradients that are only rounding errors. No number of ranks
// divides the vocabulary of SmallText.
TrainingOptions DividedGpt(int ranks, const std::string& strategy = "single") {
  TrainingOptions options = TinyGpt(strategy);
  options.heads = 4;
  options.optimizer = "sgd";
  options.lr = .1;
  options.batch = 4;
  options.tp = ranks;
  return options;
}

// Ranks divide the tokens, too.
TrainingOptions DividedTokens(int ranks, const std::string& strategy = "single") {
  TrainingOptions options = DividedGpt(ranks, strategy);
  options.sequence_parallel = true;
  return options;
}

// With a rate at which the weights still change by more than rounding.
void ClipEveryStep(TrainingOptions& options) {
  options.clip_norm = 1e-3;
  options.lr = 10;
}

TEST(DividedTraining, EqualsOneRankUpToRounding) {
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    TrainingOptions options = DividedGpt(ranks);
    options.evaluate = true;
    options.eval_every = 10;
    ExpectWeightsOfOneRank(options, 1);
  }
}

TEST(DividedTraining, HasTheGradientOfOneRank) {
  for (const int ranks : {2, 4}) {
    for (const TrainingOptions& options : {DividedGpt(ranks), DividedTokens(ranks)}) {
      SCOPED_TRACE(absl::StrCat(ranks, options.sequence_parallel ? " ranks, tokens" : " ranks"));
      ExpectGradientOfOneRank(options);
    }
  }
}

TEST(DividedTraining, ClipsByTheNormOfAllParts) {
  for (const int ranks : {2, 4}) {
    TrainingOptions options = DividedGpt(ranks);
    ClipEveryStep(options);
    ExpectWeightsOfOneRank(options, 1, 1e-5);
  }
  TrainingOptions clipped = DividedGpt(2), free = clipped;
  clipped.clip_norm = 1e-3;
  EXPECT_GT(RelativeL2(OneProcess(clipped, 1, SmallText()).weights, OneProcess(free, 1, SmallText()).weights),
            1e-3);
}

TEST(DividedTraining, DropsTheSameElementsAndAccumulatesAndRecomputes) {
  TrainingOptions options = DividedGpt(2);
  options.dropout = .2;
  options.micro_batches = 3;
  ExpectWeightsOfOneRank(options, 1);
  options.recompute = true;
  ExpectWeightsOfOneRank(options, 1);
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

// Two groups of two replicas have one copy of the state each.
TEST(DividedTraining, OfHybridShardsEqualsOneRankUpToRounding) {
  for (const bool divides_tokens : {false, true}) {
    TrainingOptions options = DividedGpt(2, divides_tokens ? "zero2" : "fsdp");
    options.sequence_parallel = divides_tokens;
    options.dp_shard = 2;
    options.batch = 2;
    options.micro_batches = 2;
    ClipEveryStep(options);
    options.check_replicas = true;
    ExpectWeightsOfOneRank(options, 4);
  }
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

TEST(DividedTraining, TimesDataParallelismEqualsOneRankUpToRounding) {
  for (const char* strategy : {"ring", "zero1", "zero2", "fsdp"}) {
    for (const bool clips : {false, true}) {
      SCOPED_TRACE(absl::StrCat(strategy, clips ? " clips" : ""));
      TrainingOptions options = DividedGpt(2, strategy);
      if (clips) ClipEveryStep(options);
      options.check_replicas = true;
      ExpectWeightsOfOneRank(options, 2);
    }
  }
}

TEST(DividedTraining, OfStagesEqualsOneRankUpToRounding) {
  for (const char* program : {"1f1b", "gpipe", "interleaved:2"}) {
    for (const int replicas : {1, 2}) {
      SCOPED_TRACE(absl::StrCat(program, ", ", replicas, " replicas"));
      TrainingOptions options = DividedGpt(2, replicas == 1 ? "single" : "ring");
      options.pp = 2;
      options.program = program;
      options.micro_batches = 3;
      options.steps = 5;
      if (replicas == 2) ClipEveryStep(options);
      options.check_replicas = true;
      options.evaluate = replicas == 1;
      options.recompute = replicas == 2;
      ExpectWeightsOfOneRank(options, replicas);
    }
  }
}

TEST(DividedTraining, CountsEverySampleOnceInAShortLastBatch) {
  ExpectWeightsOfOneRankInAShortLastBatch(DividedGpt(2));
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

TEST(DividedTokens, EqualOneRankUpToRounding) {
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    TrainingOptions options = DividedTokens(ranks);
    options.evaluate = true;
    options.eval_every = 10;
    ExpectWeightsOfOneRank(options, 1);
    options = DividedTokens(ranks);
    ClipEveryStep(options);
    ExpectWeightsOfOneRank(options, 1, 1e-5);
  }
}

// Of 3 samples, 2 ranks have one and a half each, and the parts of 4 ranks begin and end within samples.
TEST(DividedTokens, DropTheSameElementsAndAccumulateAndRecompute) {
  for (const int ranks : {2, 4}) {
    for (const bool recomputes : {false, true}) {
      SCOPED_TRACE(absl::StrCat(ranks, recomputes ? " recompute" : ""));
      TrainingOptions options = DividedTokens(ranks);
      options.batch = 3;
      options.dropout = .2;
      options.micro_batches = 2;
      options.recompute = recomputes;
      ExpectWeightsOfOneRank(options, 1);
    }
  }
}

TEST(DividedTokens, TimesReplicasAndStagesEqualOneRankUpToRounding) {
  for (const char* strategy : {"ring", "zero1", "zero2", "fsdp"}) {
    SCOPED_TRACE(strategy);
    TrainingOptions options = DividedTokens(2, strategy);
    options.check_replicas = true;
    ExpectWeightsOfOneRank(options, 2);
  }
  for (const char* program : {"1f1b", "interleaved:2"}) {
    for (const int replicas : {1, 2}) {
      SCOPED_TRACE(absl::StrCat(program, ", ", replicas, " replicas"));
      TrainingOptions options = DividedTokens(2, replicas == 1 ? "single" : "ring");
      options.pp = 2;
      options.program = program;
      options.micro_batches = 3;
      options.steps = 5;
      options.dropout = replicas == 1 ? .1 : 0;
      options.check_replicas = true;
      options.evaluate = replicas == 1;
      options.recompute = replicas == 2;
      ExpectWeightsOfOneRank(options, replicas);
    }
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
  options.checkpoint_dir = "kept";
  options.checkpoint_every = 2;
  KeptSteps kept, rest;
  const std::vector<float> end = WeightsOf(KeepReplicas(options, 3, SmallText(), kept));
  ASSERT_TRUE(kept.contains(2));
  EXPECT_EQ(WeightsOf(KeepReplicas(options, 3, SmallText(), rest, &kept[2])), end);
}

TEST(DividedTraining, ResumesWhatAnyLayoutHasSaved) {
  TrainingOptions options = DividedGpt(2);
  options.optimizer = "momentum";
  options.steps = 4;
  options.checkpoint_dir = "kept";
  options.checkpoint_every = 2;
  TrainingOptions alone = options, four = options, cut = options;
  alone.tp = 1;
  four.sequence_parallel = true;
  four.tp = 4;
  cut.pp = 2;
  KeptSteps of_two, of_one, rest;
  const std::vector<float> end = WeightsOf(KeepReplicas(options, 1, SmallText(), of_two));
  const std::vector<float> end_alone = WeightsOf(KeepReplicas(alone, 1, SmallText(), of_one));
  EXPECT_LE(RelativeL2(end, end_alone), 1e-4);
  ASSERT_TRUE(of_two.contains(2) && of_one.contains(2));
  EXPECT_EQ(WeightsOf(KeepReplicas(options, 1, SmallText(), rest, &of_two[2])), end)
      << "as an uninterrupted run";
  EXPECT_LE(RelativeL2(WeightsOf(KeepReplicas(alone, 1, SmallText(), rest, &of_two[2])), end), 1e-4);
  EXPECT_LE(RelativeL2(WeightsOf(KeepReplicas(four, 1, SmallText(), rest, &of_two[2])), end), 1e-4);
  KeptSteps of_stages;
  EXPECT_LE(RelativeL2(WeightsOf(KeepReplicas(cut, 1, SmallText(), of_stages, &of_two[2])), end), 1e-4);
  ASSERT_TRUE(of_stages.contains(4));
  EXPECT_LE(RelativeL2(WeightsOf(KeepReplicas(cut, 1, SmallText(), of_stages)), end_alone), 1e-4);
  EXPECT_LE(RelativeL2(WeightsOf(KeepReplicas(alone, 1, SmallText(), rest, &of_stages[2])), end_alone), 1e-4);
  EXPECT_LE(RelativeL2(WeightsOf(KeepReplicas(options, 1, SmallText(), rest, &of_one[2])), end_alone), 1e-4);
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
    options.checkpoint_dir = "kept";
    options.checkpoint_every = 2;
    KeptSteps kept, rest;
    const std::vector<float> end = WeightsOf(KeepReplicas(options, replicas, SmallText(), kept));
    ASSERT_TRUE(kept.contains(2));
    EXPECT_EQ(WeightsOf(KeepReplicas(options, replicas, SmallText(), rest, &kept[2])), end);
  }
}

TEST(DividedTraining, ARankThatFailsEndsTheOthers) { ExpectAFailedRankToEndTheOthers(DividedGpt(4)); }

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
