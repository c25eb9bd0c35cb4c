// Kills ranks of real pipelines, and of transformers divided in other ways, at random moments: the others
// name them, and what continues from the last checkpoint ends with the weights of an undisturbed run.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/experiments/launch/restarts.h"
#include "tests/has.h"

namespace psring {
namespace {

struct MortalPipeline {
  int ranks;
  std::string flags;
};
const MortalPipeline kMortalPipelines[] = {{2, "--strategy single --pp 2"},
                                           {2, "--strategy single --pp 2 --program gpipe --transport tcp"},
                                           {3, "--strategy single --pp 3 --transport tcp"},
                                           {4, "--strategy ring --pp 2"},
                                           {4, "--strategy ring --pp 2 --rank_order pp,dp --transport tcp"}};
// Of a transformer, cut before its second block, because a version of weights that a stage reads depends on
// it.
const MortalPipeline kMortalTransformers[] = {
    {2, "--strategy fsdp"},
    {2, "--strategy fsdp --cp 2"},
    {4, "--strategy fsdp --pp 2 --cuts 8"},
    {4, "--strategy fsdp --tp 2"},
    {2, "--strategy single --pp 2 --cuts 8 --program pipedream"},
    {4, "--strategy fsdp --cp 4 --transport tcp"},
    {4, "--strategy zero1 --cp 2 --context_parallel ulysses --rank_order dp,cp"}};

class MortalPipelineTest : public RestartTest {
 protected:
  // A step takes milliseconds, so that work is left after a death.
  MortalPipelineTest() { steps_ = 450; }
  // The step of one in the first sixth.
  static int64_t SomeCheckpoint(std::mt19937& random) { return 10 + static_cast<int64_t>(random() % 60); }

  template <size_t count>
  static const MortalPipeline& Any(const MortalPipeline (&of)[count], std::mt19937& random) {
    return of[random() % count];
  }
  // The model of runs started from now on has sequences.
  void TrainATransformer() {
    std::ofstream text(Out("text"));
    for (int i = 0; i < 200; ++i) text << "one fish, two fish, red fish, blue fish " << i % 7 << "\n";
    model_ = absl::StrCat("gpt-nano --layers 2 --width 16 --heads 4 --context 8 --text ", Out("text"));
    data_ = "text";
  }
  // Waits up to about three steps.
  static void AwaitSomeMoment(std::mt19937& random) { absl::SleepFor(absl::Microseconds(random() % 15'000)); }
  // psring's flags.
  static std::string Job(const MortalPipeline& pipeline) {
    return absl::StrCat(pipeline.flags, " --micro_batches 4 --workers ", pipeline.ranks);
  }
  std::string HashOfUndisturbed(const MortalPipeline& pipeline) {
    std::string& hash = undisturbed_[pipeline.flags];
    if (!hash.empty()) return hash;
    const std::string out = Out(absl::StrCat("undisturbed", undisturbed_.size()));
    Start(Job(pipeline), out);
    EXPECT_EQ(Wait(), 0) << output();
    return hash = Hash(out);
  }

  void ExpectContinuation(const MortalPipeline& pipeline, std::mt19937& random) {
    const std::string undisturbed = HashOfUndisturbed(pipeline);
    const int victim = static_cast<int>(random() % static_cast<uint32_t>(pipeline.ranks));
    const bool restarts = random() % 2 == 0;
    const std::string run = Out(absl::StrCat("run", ++round_)), checkpoints = run + "-checkpoints";
    SCOPED_TRACE(absl::StrCat(Job(pipeline), restarts ? ", restarted" : ", resumed", ", rank ", victim));
    Start(Job(pipeline), run,
          absl::StrCat("--checkpoint_dir ", checkpoints, restarts ? " --max_restarts 1" : ""));
    const pid_t pid = PidOf(absl::StrCat("rank ", victim));
    AwaitCheckpoint(checkpoints, SomeCheckpoint(random));
    AwaitSomeMoment(random);
    Kill(pid, SIGKILL);
    EXPECT_EQ(Wait(), restarts ? 0 : 1) << output();
    EXPECT_THAT(output(), Has(absl::StrCat("rank ", victim, " was killed by SIGKILL")));
    EXPECT_TRUE(AllEnd());
    if (restarts) {
      EXPECT_THAT(output(), Has("all ranks are restarted from "));
      EXPECT_EQ(Hash(run), undisturbed);
      return;
    }
    Start(Job(pipeline), run + "-resumed", absl::StrCat("--resume ", checkpoints));
    EXPECT_EQ(Wait(), 0) << output();
    EXPECT_THAT(output(), Has("resumed after step "));
    EXPECT_EQ(Hash(run + "-resumed"), undisturbed);
  }
  // No launcher sees the death.
  void ExpectRanksToNameTheDead(const MortalPipeline& pipeline, std::mt19937& random) {
    const int victim = static_cast<int>(random() % static_cast<uint32_t>(pipeline.ranks));
    const std::string job = Out(absl::StrCat("by-hand", ++round_)), checkpoints = job + "-checkpoints";
    steps_ = 1'000'000;  // none ends by itself
    SCOPED_TRACE(absl::StrCat(Job(pipeline), ", rank ", victim));
    StartedOnes ranks;
    for (int rank = 0; rank < pipeline.ranks; ++rank) {
      ranks.push_back(
          StartTrainer(absl::StrCat("--progress none --rendezvous file://", job, "-meet --record ", job,
                                    " --micro_batches 4 --checkpoint_every 10 --checkpoint_dir ", checkpoints,
                                    " ", Training(pipeline.flags)),
                       {absl::StrCat("RANK=", rank), absl::StrCat("WORLD_SIZE=", pipeline.ranks)}));
    }
    const int64_t step = SomeCheckpoint(random);
    ASSERT_TRUE(WaitUntil(ranks, [&] { return HasCheckpoint(checkpoints, step); })) << ranks[0]->Story();
    AwaitSomeMoment(random);
    ranks[static_cast<size_t>(victim)]->Signal(SIGKILL);
    EXPECT_TRUE(WaitForAll(ranks));
    for (int rank = 0; rank < pipeline.ranks; ++rank) {
      if (rank == victim) continue;
      const Started& one = *ranks[static_cast<size_t>(rank)];
      EXPECT_FALSE(one.Succeeded()) << one.Story();
      EXPECT_THAT(one.errors(), Has(absl::StrCat("rank ", victim))) << one.Story();
    }
  }

  int round_ = 0;
  std::map<std::string, std::string> undisturbed_;
};

TEST_F(MortalPipelineTest, AfterADeathAResumedOrRestartedRunEndsWithTheSameWeights) {
  AtRandomMoments(1,
                  [&](std::mt19937& random) { ExpectContinuation(Any(kMortalPipelines, random), random); });
}

TEST_F(MortalPipelineTest, RanksStartedByHandNameTheOneThatDied) {
  AtRandomMoments(
      1, [&](std::mt19937& random) { ExpectRanksToNameTheDead(Any(kMortalPipelines, random), random); });
}

// As many deaths for each as for every other, in turn.
TEST_F(MortalPipelineTest, RanksOfATransformerContinueWithTheSameWeights) {
  TrainATransformer();
  AtRandomMoments(1, [&](std::mt19937& random) {
    const auto turn = static_cast<size_t>(seed_ + round_);
    ExpectContinuation(kMortalTransformers[turn % std::size(kMortalTransformers)], random);
  });
}

TEST_F(MortalPipelineTest, RanksOfATransformerNameTheOneThatDied) {
  TrainATransformer();
  AtRandomMoments(
      1, [&](std::mt19937& random) { ExpectRanksToNameTheDead(Any(kMortalTransformers, random), random); });
}

}  // namespace
}  // namespace psring
