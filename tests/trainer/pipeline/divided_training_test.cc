// Training of a transformer whose matrices, tokens or sequences several ranks divide equals that of one rank,
// up to the order of additions. Ranks are threads.
#include "tests/trainer/divided_training.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/trainer/cluster.h"
#include "tests/trainer/kept_training.h"

namespace psring {
namespace {

struct DividedWay {
  const char* name;
  const char* context_parallel;  // empty: --tp
  bool divides_tokens = false;   // --sequence_parallel
};

std::ostream& operator<<(std::ostream& out, const DividedWay& way) { return out << way.name; }

class DividedWays : public testing::TestWithParam<DividedWay> {
 protected:
  static bool CutsSequences() { return *GetParam().context_parallel != 0; }
  static int& RanksOf(TrainingOptions& options) { return CutsSequences() ? options.cp : options.tp; }
  // By default of one replica; the ranks of a sequence add up their gradients.
  static TrainingOptions Options(int ranks, const std::string& strategy = "") {
    const std::string of_one = CutsSequences() ? "ring" : "single";
    TrainingOptions options = GptOfFourHeads(strategy.empty() ? of_one : strategy);
    RanksOf(options) = ranks;
    if (CutsSequences()) options.context_parallel = GetParam().context_parallel;
    options.sequence_parallel = GetParam().divides_tokens;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, DividedWays,
                         testing::Values(DividedWay{"matrices", ""}, DividedWay{"tokens", "", true},
                                         DividedWay{"ring", "ring"}, DividedWay{"contiguous", "contiguous"},
                                         DividedWay{"ulysses", "ulysses"}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(DividedWays, TrainLikeOneRankUpToRounding) {
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    TrainingOptions options = Options(ranks);
    options.evaluate = true;
    options.eval_every = 10;
    ExpectWeightsOfOneRank(options, 1);
  }
}

TEST_P(DividedWays, HaveTheGradientOfOneRank) {
  for (const int ranks : {2, 4}) ExpectGradientOfOneRank(Options(ranks));
}

// Of the tokens of 3 samples, 2 ranks have those of one and a half each, and the parts of 4 ranks begin and
// end within samples.
TEST_P(DividedWays, DropTheSameElementsAndAccumulateAndRecompute) {
  for (const int ranks : GetParam().divides_tokens ? std::vector{2, 4} : std::vector{2}) {
    for (const bool recomputes : {false, true}) {
      SCOPED_TRACE(absl::StrCat(ranks, recomputes ? " recompute" : ""));
      TrainingOptions options = Options(ranks);
      options.batch = GetParam().divides_tokens ? 3 : 4;
      options.dropout = .2;
      options.micro_batches = 3;
      options.recompute = recomputes;
      ExpectWeightsOfOneRank(options, 1);
    }
  }
}

TEST_P(DividedWays, TimesDataParallelismTrainLikeOneRank) {
  for (const char* strategy : {"ring", "zero1", "zero2", "fsdp"}) {
    for (const bool clips : {false, true}) {
      SCOPED_TRACE(absl::StrCat(strategy, clips ? " clips" : ""));
      TrainingOptions options = Options(2, strategy);
      if (clips) ClipEveryStep(options);
      options.check_replicas = true;
      options.evaluate = true;
      options.steps = 10;
      ExpectWeightsOfOneRank(options, 2);
    }
  }
}

// Two groups of two replicas have one copy of the state each; of sequences, the two ranks of each replica.
TEST_P(DividedWays, WithHybridShardsTrainLikeOneRank) {
  TrainingOptions options = Options(2, GetParam().divides_tokens ? "zero2" : "fsdp");
  options.dp_shard = 2;
  options.batch = 2;
  options.micro_batches = 2;
  ClipEveryStep(options);
  options.check_replicas = true;
  options.evaluate = true;
  options.steps = 5;
  ExpectWeightsOfOneRank(options, CutsSequences() ? 2 : 4);
}

TEST_P(DividedWays, OfStagesTrainWithEveryProgram) {
  for (const std::string program : {"1f1b", "gpipe", "interleaved:2", "zb-h1"}) {
    const bool divides_backward = program == "zb-h1";  // and needs all activations
    if (divides_backward && !CutsSequences()) continue;
    for (const int replicas : {1, 2}) {
      SCOPED_TRACE(absl::StrCat(program, ", ", replicas, " replicas"));
      TrainingOptions options = Options(2, replicas == 1 ? "" : "ring");
      options.pp = 2;
      options.program = program;
      options.micro_batches = 3;
      options.steps = 5;
      if (replicas == 2) ClipEveryStep(options);
      options.dropout = replicas == 1 ? .1 : 0;
      options.check_replicas = true;
      options.evaluate = replicas == 1;
      options.recompute = replicas == 2 && !divides_backward;
      ExpectWeightsOfOneRank(options, replicas);
    }
  }
}

TEST_P(DividedWays, CountEverySampleOnceInAShortLastBatch) {
  ExpectWeightsOfOneRankInAShortLastBatch(Options(2));
}

TEST_P(DividedWays, ResumeWhatAnyLayoutHasSaved) {
  TrainingOptions options = Options(2);
  options.optimizer = "momentum";
  options.steps = 4;
  options.checkpoint_dir = "kept";
  options.checkpoint_every = 2;
  TrainingOptions alone = options, four = options, cut = options;
  RanksOf(alone) = 1;
  alone.sequence_parallel = false;
  alone.strategy = "single";
  RanksOf(four) = 4;
  if (CutsSequences()) {
    four.strategy = "fsdp";
  } else {
    four.sequence_parallel = !options.sequence_parallel;
  }
  cut.pp = 2;
  const auto end_of = [](const TrainingOptions& of, KeptSteps& kept, const Files* resume = nullptr) {
    return WeightsOf(KeepReplicas(of, 1, SmallText(), kept, resume));
  };
  KeptSteps of_two, of_one, of_stages, rest;
  const std::vector<float> end = end_of(options, of_two), end_alone = end_of(alone, of_one);
  EXPECT_LE(RelativeL2(end, end_alone), 1e-4);
  ASSERT_TRUE(of_two.contains(2) && of_one.contains(2));
  EXPECT_EQ(end_of(options, rest, &of_two[2]), end) << "as an uninterrupted run";
  EXPECT_LE(RelativeL2(end_of(alone, rest, &of_two[2]), end), 1e-4);
  EXPECT_LE(RelativeL2(end_of(four, rest, &of_two[2]), end), 1e-4);
  EXPECT_LE(RelativeL2(end_of(options, rest, &of_one[2]), end_alone), 1e-4);
  EXPECT_LE(RelativeL2(end_of(cut, rest, &of_two[2]), end), 1e-4);
  EXPECT_LE(RelativeL2(end_of(cut, of_stages), end_alone), 1e-4);
  ASSERT_TRUE(of_stages.contains(2) && of_stages.contains(4));
  EXPECT_LE(RelativeL2(end_of(alone, rest, &of_stages[2]), end_alone), 1e-4);
}

TEST_P(DividedWays, ARankThatFailsEndsTheOthers) { ExpectAFailedRankToEndTheOthers(Options(4)); }

}  // namespace
}  // namespace psring
