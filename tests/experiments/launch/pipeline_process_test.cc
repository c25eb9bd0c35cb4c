// psring train with real processes that have parts of the model: their weights are those of one process,
// whatever the program, the transport and the order of the ranks.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/measure/records.h"
#include "tests/experiments/launch/restarts.h"
#include "tests/experiments/psring_in_a_folder.h"
#include "tests/experiments/training_processes.h"
#include "tests/has.h"

namespace psring {
namespace {

using Json = nlohmann::json;

constexpr char kStep[] = " --data synthetic --batch 8 --micro_batches 4 --timeout 40 ";

class PipelineProcess : public PsringInAFolder {
 protected:
  // Trains in the folder `out`.
  void Train(const std::string& flags, const std::string& out) {
    Succeed(absl::StrCat("train", kStep, "--model mlp-small --steps 4 ", flags, " --out ", out));
  }
  RankResult Result(const std::string& out, const std::string& launch, int rank) const {
    const std::string file = absl::StrCat("records/training-1/", launch, "/result-rank", rank, ".json");
    const absl::StatusOr<RankResult> result = RankResultFromJson(File(absl::StrCat(out, "/", file)));
    EXPECT_TRUE(result.ok()) << file << ": " << result.status();
    return result.value_or(RankResult());
  }
  Json Figures(const std::string& out) const {
    return JsonFile(absl::StrCat(out, "/summary.json"))[0]["figures"];
  }
  // Writes the text that it reads.
  std::string TinyGpt() {
    std::ofstream text(root_ / "work" / "text");
    for (int i = 0; i < 100; ++i) text << "one fish, two fish, red fish, blue fish " << i % 7 << "\n";
    return " --model gpt-nano --layers 2 --width 16 --heads 4 --context 8 --data text --text text ";
  }
  // All ranks have the weights of `replicas`, results of data parallelism, and the loss of their replica's.
  void ExpectResults(const std::string& out, const std::string& launch, int ranks,
                     const std::vector<RankResult>& replicas, bool stages_first = false) {
    const int count = static_cast<int>(replicas.size());
    for (int rank = 0; rank < ranks; ++rank) {
      const RankResult result = Result(out, launch, rank);
      const RankResult& expected = replicas[stages_first ? rank * count / ranks : rank % count];
      EXPECT_EQ(result.rank, rank);
      EXPECT_EQ(result.world_size, ranks);
      EXPECT_EQ(result.weights_hash, expected.weights_hash) << "rank " << rank;
      EXPECT_NEAR(result.final_loss, expected.final_loss, 1e-6 * expected.final_loss) << "rank " << rank;
    }
  }
};

TEST_F(PipelineProcess, TwoStagesEndWithTheWeightsOfOneProcess) {
  Train("--strategy single", "single");
  const RankResult single = Result("single", "single-1", 0);
  const Json expected = Figures("single");
  int number = 0;
  for (const char* flags :
       {"--program gpipe --transport tcp", "--program zb-h1 --transport shm",
        "--ranks_per_process 2 --cuts 2", "--strategy ring", "--strategy none --rank_order pp,dp"}) {
    SCOPED_TRACE(flags);
    const std::string out = absl::StrCat("run", number++);
    Train(absl::StrCat("--workers 2 --pp 2 ", flags), out);
    const Json figures = Figures(out);
    const std::string launch = absl::StrCat(figures["strategy"].get<std::string>(), "-2-pp2-",
                                            figures["program"].get<std::string>(), "-m4");
    ExpectResults(out, launch, 2, {single});
    EXPECT_EQ(figures["layout"], "pp2");
    EXPECT_EQ(figures["workers"], 2);
    EXPECT_EQ(figures["micro_batches"], 4);
    EXPECT_EQ(figures["global_batch"], expected["global_batch"]);
    EXPECT_EQ(figures["test_accuracy"], expected["test_accuracy"]);
    // The ranks of the first stage count the samples.
    EXPECT_EQ(Result(out, launch, 0).samples, single.samples);
    EXPECT_EQ(Result(out, launch, 1).samples, 0);
    EXPECT_GT(figures["samples_per_s"], 0);
    EXPECT_GT(figures["payload_tx_bytes_per_worker"], 0);
  }
}

TEST_F(PipelineProcess, TwoStagesOnEachRankEndWithTheWeightsOfOneProcess) {
  const std::string training = absl::StrCat("train", kStep, "--model cnn --steps 2 --no_eval --out ");
  Succeed(absl::StrCat(training, "single"));
  Succeed(absl::StrCat(training, "run --workers 2 --pp 2 --program interleaved:2"));
  ExpectResults("run", "single-2-pp2-interleaved-2-m4", 2, {Result("single", "single-1", 0)});
}

TEST_F(PipelineProcess, TwoReplicasOfTwoStagesEndWithTheWeightsOfARingOfTwo) {
  Train("--strategy ring --workers 2", "ring");
  const std::vector<RankResult> ring = {Result("ring", "ring-2", 0), Result("ring", "ring-2", 1)};
  int number = 0;
  for (const auto& [stages_first, flags] : {std::pair(false, "--workers 4 --pp 2"),
                                            {true, "--workers 4 --pp 2 --strategy ring --rank_order pp,dp"},
                                            {true, "--preset dp2xpp2 --program gpipe"}}) {
    SCOPED_TRACE(flags);
    const std::string out = absl::StrCat("run", number++);
    Train(flags, out);  // ring is the default of several replicas
    const Json figures = Figures(out);
    ExpectResults(out, absl::StrCat("ring-4-pp2-", figures["program"].get<std::string>(), "-m4"), 4, ring,
                  stages_first);
    EXPECT_EQ(figures["layout"], "dp2xpp2");
    EXPECT_EQ(figures["global_batch"], ring[0].global_batch);
    EXPECT_EQ(figures["replicas_equal"], true);
  }
}

struct DividedTraining {
  const char* layout;
  int workers;
  const char *launch, *flags;
};

class DividedProcess : public PipelineProcess {
 protected:
  // Trains with each, and once in one process: all ranks end with the same weights and its loss. `expect`
  // gets the first row of each summary.
  template <typename Expect>
  void ExpectTheLossOfOneProcess(const std::string& axis, const std::vector<DividedTraining>& all,
                                 const Expect& expect) {
    const std::string training = absl::StrCat(
        "train", TinyGpt(), "--optimizer sgd --lr 0.1 --steps 4 --timeout 40 --micro_batches 2 --batch ");
    Succeed(absl::StrCat(training, "8 --strategy single --out single"));
    const RankResult single = Result("single", "single-1", 0);
    const double accuracy = Figures("single")["test_accuracy"];
    int number = 0;
    for (const auto& [layout, workers, launch, flags] : all) {
      SCOPED_TRACE(absl::StrCat(layout, " ", flags));
      const std::string out = absl::StrCat("run", number++);
      Succeed(absl::StrCat(training, flags, " --workers ", workers, " --", axis, " ",
                           layout[2] == '4' ? 4 : 2, " --out ", out));
      const RankResult first = Result(out, launch, 0);
      for (int rank = 0; rank < workers; ++rank) {
        const RankResult result = Result(out, launch, rank);
        EXPECT_EQ(result.rank, rank);
        EXPECT_EQ(result.world_size, workers);
        EXPECT_EQ(result.weights_hash, first.weights_hash) << "rank " << rank;
        EXPECT_EQ(result.parameters, single.parameters);
      }
      const bool replicas = layout[0] == 'd';  // the loss is that of replica 0's samples
      EXPECT_NEAR(first.final_loss, single.final_loss, (replicas ? .1 : 1e-4) * single.final_loss);
      const Json row = JsonFile(absl::StrCat(out, "/summary.json"))[0], figures = row["figures"];
      EXPECT_EQ(figures["layout"], layout);
      EXPECT_NEAR(figures["test_accuracy"].get<double>(), accuracy, .02);
      for (const char* above_0 : {"samples_per_s", "payload_tx_bytes_per_worker", "exposed_comm_ms"})
        EXPECT_GT(figures[above_0], 0) << above_0;
      expect(row, first.samples * (replicas ? 2 : 1) == single.samples);
    }
  }
};

TEST_F(DividedProcess, RanksThatDivideSequencesEndWithTheLossOfOneProcess) {
  ExpectTheLossOfOneProcess(
      "cp",
      {{"cp2", 2, "ring-2-cp2", "8"},
       {"cp4", 4, "fsdp-4-cp4", "8 --strategy fsdp --transport tcp --ranks_per_process 2"},
       {"cp2", 2, "ring-2-cp2-ulysses", "8 --context_parallel ulysses --transport tcp"},
       {"dp2xcp2", 4, "zero1-4-cp2", "4 --strategy zero1 --rank_order dp,cp"}},
      [](const Json& row, bool has_its_samples) {
        EXPECT_TRUE(has_its_samples);
        EXPECT_EQ(row["figures"]["replicas_equal"], true);
        EXPECT_GT(row["links"]["sequences"], 0);
        EXPECT_GT(row["links"]["replicas"], 0) << "gradients";
        for (const char* other : {"stages", "tensors"}) EXPECT_EQ(row["links"][other], 0) << other;
      });
}

TEST_F(DividedProcess, RanksThatDivideMatricesEndWithTheLossOfOneProcess) {
  ExpectTheLossOfOneProcess(
      "tp",
      {{"tp2", 2, "single-2-tp2", "8 --strategy single"},
       {"tp4", 4, "none-4-tp4",
        "8 --strategy none --transport tcp --ranks_per_process 2 --sequence_parallel"},
       {"dp2xtp2", 4, "ring-4-tp2", "4 --strategy ring"},
       {"dp2xtp2", 4, "ps-sync-4-on-2-tp2", "4 --strategy ps-sync --sequence_parallel"},
       {"pp2xtp2", 4, "single-4-tp2-pp2-1f1b-m2", "8 --strategy single --pp 2 --rank_order pp,tp,dp"}},
      [](const Json&, bool) {});
}

TEST_F(PipelineProcess, EachStageHasItsServers) {
  Train("--strategy ps-sync --workers 2", "whole");
  const RankResult whole = Result("whole", "ps-sync-2", 0);
  int number = 0;
  for (const auto& [servers, flags] : {std::pair(2, "--rank_order pp,dp --transport tcp"),
                                       {4, "--servers 2 --ranks_per_process 2"},
                                       {4, "--server_placement colocated"}}) {
    SCOPED_TRACE(flags);
    const std::string out = absl::StrCat("run", number++);
    Train(absl::StrCat("--strategy ps-sync --workers 4 --pp 2 ", flags), out);
    const std::string launch = absl::StrCat("ps-sync-4-on-", servers, "-pp2-1f1b-m4");
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(Result(out, launch, rank).weights_hash, whole.weights_hash) << "rank " << rank;
    }
    const Json figures = Figures(out);
    EXPECT_EQ(figures["servers"], servers);
    EXPECT_EQ(figures["layout"], "dp2xpp2");
    EXPECT_EQ(figures["replicas_equal"], true);
    for (int server = 0; server < servers; ++server) {
      const Json served =
          JsonFile(absl::StrCat(out, "/records/training-1/", launch, "/result-server", server, ".json"));
      EXPECT_EQ(served["server"], server);
      EXPECT_GT(served["pushes"], 0);
    }
  }
}

TEST_F(PipelineProcess, ReplicasWithBoundedStalenessEndWithTheSameWeights) {
  Succeed(absl::StrCat("train", kStep,
                       "--model mlp-small --steps 4 --no_eval --strategy ps-ssp:1 --workers 4 --pp 2 ",
                       "--out run"));
  EXPECT_LE(Figures("run")["staleness_max"], 3);
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(Result("run", "ps-ssp-1-4-on-2-pp2-1f1b-m4", rank).weights_hash,
              Result("run", "ps-ssp-1-4-on-2-pp2-1f1b-m4", 0).weights_hash);
  }
}

// Other asynchronous jobs continue without it.
TEST_F(PipelineProcess, AKilledWorkerIsNamedAndEndsTheJobAlsoWithBoundedStaleness) {
  const std::string records = Path("run/records/training-1/ps-ssp-1-4-on-2-pp2-1f1b-m4").string();
  const pid_t psring =
      Start(Words(absl::StrCat("train", kStep, "--model mlp-small --epochs 1000 --no_eval ",
                               "--strategy ps-ssp:1 --workers 4 --pp 2 --out ", Path("run").string())));
  AwaitSteps(absl::StrCat(records, "/steps-rank3.jsonl"));
  SignalProcess(Path("run").string(), "rank 3", SIGKILL);
  const Outcome outcome = FinishSoon(psring);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, Has("rank 3 was killed by SIGKILL"));
  ExpectNoProcessWith(records);
}

TEST_F(PipelineProcess, ReplicasThatExchangeNoGradientsHaveTheSameCuts) {
  Train("--strategy none --workers 4 --pp 2 --no_eval", "run");
  EXPECT_EQ(Figures("run")["layout"], "dp2xpp2");
  for (const int replica : {0, 1}) {
    const auto hash = [&](int position) {
      return Result("run", "none-4-pp2-1f1b-m4", replica + 2 * position).weights_hash;
    };
    EXPECT_EQ(hash(0), hash(1)) << "both ranks of a replica gather its weights";
  }
}

TEST_F(PipelineProcess, ACheckpointOfAPipelineContinuesInOneProcessAndTheOtherWay) {
  Train("--strategy single --no_eval", "whole");
  const std::string hash = Result("whole", "single-1", 0).weights_hash;
  const std::string pipeline = "--workers 2 --pp 2 --no_eval ", single = "--strategy single --no_eval ";
  int number = 0;
  for (const auto& [first, second] : {std::pair(pipeline, single), {single, pipeline}}) {
    const std::string begun = absl::StrCat("begun", number), ended = absl::StrCat("ended", number);
    ++number;
    Succeed(absl::StrCat("train", kStep, "--model mlp-small --steps 2 ", first, "--checkpoint_dir ", begun,
                         "-checkpoints --out ", begun));
    Train(absl::StrCat(second, "--resume ", begun, "-checkpoints"), ended);
    const bool is_cut = second == pipeline;
    EXPECT_EQ(Result(ended, is_cut ? "single-2-pp2-1f1b-m4" : "single-1", 0).weights_hash, hash);
  }
}

TEST_F(PipelineProcess, StagesUseTheLinksOfAVirtualCluster) {
  SucceedOnLinks(absl::StrCat("train", kStep,
                              "--model mlp-small --steps 4 --no_eval --strategy ring --workers 2 ",
                              "--pp 2 --link 100mbit --out run"));
  const Json figures = Figures("run");
  EXPECT_EQ(figures["link_mbps"], 100);
  EXPECT_EQ(figures["wire"], "TCP");
  // At least the activations and gradients of 4 micro-batches of 8 samples, for 100 values each.
  EXPECT_GT(figures["payload_tx_bytes_per_worker"], 4 * 8 * 100 * 4);
}

TEST_F(PipelineProcess, ADryRunDescribesThePipeline) {
  const Outcome outcome =
      Succeed(absl::StrCat("train", kStep, "--model mlp-small --preset dp2xpp2 --dry_run"));
  EXPECT_THAT(outcome.out, Has("ring x 4 (dp2xpp2 1f1b)", "--strategy ring by default: there are 2 replicas",
                               "a replica's step is 4 x 8 samples", "idle in 20% of it (1f1b)"));
  const auto planned = [this](const std::string& flags) {
    return Succeed(absl::StrCat("train", kStep, "--model mlp-small --dry_run ", flags)).out;
  };
  EXPECT_THAT(planned("--workers 4 --pp 2"), Has("ring x 4 (dp2xpp2 1f1b)"));
  EXPECT_THAT(planned("--preset dp4"), Has("ring x 4, "));
  EXPECT_THAT(planned("--preset pp2"), Has("single x 2 (pp2 1f1b)"));
  const auto refused = [this](const std::string& flags) {
    return Run(Words(absl::StrCat("train", kStep, "--model mlp-small --dry_run --workers 2 ", flags))).err;
  };
  EXPECT_THAT(refused("--pp 2 --cuts 9"), Has("--cuts 9: the model can be cut before the layers 1,2"));
  EXPECT_THAT(refused("--pp 2 --program interleaved:4"),
              Has("this model can be cut into 1 to 3 stages, not 8"));
  EXPECT_TRUE(std::filesystem::is_empty(Path("")));
}

TEST_F(PipelineProcess, ADryRunDescribesDividedMatrices) {
  const std::string training = absl::StrCat("train", TinyGpt(), "--batch 2 --dry_run ");
  EXPECT_THAT(Succeed(absl::StrCat(training, "--preset dp2xtp2")).out,
              Has("ring x 4 (dp2xtp2)", "--strategy ring by default: there are 2 replicas"));
  EXPECT_THAT(Succeed(absl::StrCat(training, "--preset pp2xtp2 --micro_batches 4")).out,
              Has("single x 4 (pp2xtp2 1f1b)"));
  EXPECT_THAT(Succeed(absl::StrCat(training, "--workers 4 --tp 2")).out, Has("ring x 4 (dp2xtp2)"));
  EXPECT_THAT(Succeed(absl::StrCat(training, "--preset dp2xcp2")).out, Has("ring x 4 (dp2xcp2)"));
  EXPECT_THAT(Succeed(absl::StrCat(training, "--workers 2 --cp 2")).out,
              Has("ring x 2 (cp2)", "--strategy ring by default: the 2 workers of a sequence"));
}

// Kills ranks of real pipelines, and of transformers divided in other ways, at random moments: the others
// name them, and what continues from the last checkpoint ends with the weights of an undisturbed run.

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
