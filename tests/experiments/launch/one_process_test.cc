// Several ranks in one process, one thread each: a failing rank ends the others, any layout can resume a
// checkpoint, and psring reports the layout.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/io/files.h"
#include "common/measure/records.h"
#include "tests/experiments/slurp.h"
#include "tests/experiments/start_psring.h"
#include "tests/experiments/training_processes.h"
#include "tests/full_disk.h"
#include "tests/has.h"

namespace psring {
namespace {

constexpr char kShortTraining[] =
    "--model mlp-small --data synthetic --steps 4 --batch 8 --no_eval --timeout 20";

class OneProcessTest : public LaunchTest {
 protected:
  // Starts `processes` trainers that meet in the file `name`; a single one as by hand.
  StartedOnes Start(int processes, const std::string& flags, const std::string& name = "meet") {
    StartedOnes ones;
    for (int process = 0; process < processes; ++process) {
      const std::string meet = processes == 1 ? "" : absl::StrCat(" --rendezvous file://", Folder(name));
      ones.push_back(StartTrainer(
          absl::StrCat(flags, meet),
          processes == 1
              ? std::vector<std::string>()
              : std::vector<std::string>{absl::StrCat("RANK=", process), absl::StrCat("LOCAL_RANK=", process),
                                         absl::StrCat("LOCAL_WORLD_SIZE=", processes),
                                         absl::StrCat("WORLD_SIZE=", processes)}));
    }
    return ones;
  }

  // Trains, and returns the final weights' hash of each rank.
  std::vector<std::string> Trained(int processes, int each, const std::string& flags) {
    const std::string records = Folder("records");
    std::filesystem::remove_all(records);
    StartedOnes ones =
        Start(processes, absl::StrCat(flags, " --record ", records,
                                      each > 1 ? absl::StrCat(" --ranks_per_process ", each) : ""));
    const bool ended = WaitForAll(ones);
    for (const auto& one : ones) EXPECT_TRUE(ended && one->Succeeded()) << flags << ": " << one->Story();
    std::vector<std::string> weights;
    for (int rank = 0;; ++rank) {
      const auto text = ReadFile(absl::StrCat(records, "/result-rank", rank, ".json"));
      if (!text.ok()) break;
      const auto result = RankResultFromJson(*text);
      EXPECT_TRUE(result.ok()) << result.status();
      if (!result.ok()) break;
      EXPECT_EQ(result->rank, rank);
      EXPECT_TRUE(std::filesystem::exists(absl::StrCat(records, "/trace-rank", rank, ".json")));
      weights.push_back(result->weights_hash);
    }
    return weights;
  }
};

TEST_F(OneProcessTest, ARankThatCannotStartIsNamedAndEndsAll) {
  // Rank 2 cannot write its records.
  std::filesystem::create_directories(Folder("records/steps-rank2.jsonl"));
  const auto one = Ended(StartTrainer(absl::StrCat("--strategy ring --ranks_per_process 4 ", kShortTraining,
                                                   " --record ", Folder("records"))));
  EXPECT_FALSE(one->Succeeded());
  EXPECT_THAT(one->errors(), testing::StartsWith("trainer: rank 2: cannot write "));
}

TEST_F(OneProcessTest, ARankThatFailsIsNamedAndEndsAll) {
  // The last rank cannot write its records, which it notices after some steps.
  const std::vector<std::pair<const char*, int>> kinds = {
      {"ring", 1}, {"ring --transport tcp", 2}, {"gloo", 2}, {"ps-sync", 1}, {"ps-async", 1}};
  std::vector<StartedOnes> jobs;
  for (const auto& [strategy, processes] : kinds) {
    const std::string job = absl::StrCat("job", jobs.size()), records = Folder(job + "-records");
    std::filesystem::create_directories(records);
    if (!MakeFullFile(absl::StrCat(records, "/steps-rank", 3 * processes - 1, ".jsonl"))) {
      GTEST_SKIP() << "only root may create devices";
    }
    jobs.push_back(
        Start(processes,
              absl::StrCat("--model mlp-small --data synthetic --steps 1000000 --timeout 40 --strategy ",
                           strategy, " --ranks_per_process 3 --record ", records),
              job));
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    SCOPED_TRACE(absl::StrCat(kinds[i].first, " on ", kinds[i].second));
    const StartedOnes& ones = jobs[i];
    EXPECT_TRUE(WaitForAll(ones));
    // Another rank of the process may be the first to end, because of this one.
    EXPECT_THAT(ones.back()->errors(),
                Has("trainer: rank ", absl::StrCat("rank ", 3 * kinds[i].second - 1, ": cannot write ")))
        << ones.back()->Story();
    for (const auto& one : ones) EXPECT_THAT(one->Story(), Has("exit code 1\n"));
  }
}

TEST_F(OneProcessTest, RanksReportAKilledPeerProcess) {
  const std::vector<std::string> strategies = {"ring", "ring --transport tcp", "gloo", "ps-sync"};
  std::vector<StartedOnes> jobs;
  for (const std::string& strategy : strategies)
    jobs.push_back(Start(2,
                         absl::StrCat("--model mlp-small --data synthetic --steps 1000000 --timeout 20 ",
                                      "--progress json --ranks_per_process 2 --strategy ", strategy),
                         absl::StrCat("job", jobs.size())));
  for (const StartedOnes& ones : jobs) {
    EXPECT_TRUE(WaitUntil(ones, [&] { return absl::StrContains(ones[1]->output(), "\"step\",\"rank\":3"); }))
        << ones[1]->Story();
    ones[1]->Signal(SIGKILL);
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    SCOPED_TRACE(strategies[i]);
    const StartedOnes& ones = jobs[i];
    EXPECT_TRUE(WaitForAll(ones));
    EXPECT_FALSE(ones[0]->Succeeded());
    const std::string& errors = ones[0]->errors();
    EXPECT_TRUE(absl::StrContains(errors, "trainer: rank 0: ") ||
                absl::StrContains(errors, "trainer: rank 1: "))
        << ones[0]->Story();
  }
}

TEST_F(OneProcessTest, SigtermKeepsACheckpointThatAnyLayoutCanResume) {
  const std::string flags = absl::StrCat(
      "--strategy ring --model mlp-small --data synthetic --batch 8 --no_eval --timeout 20 --jitter_ms 2 "
      "--schedule linear --steps 200 --checkpoint_every 10 --checkpoint_dir ",
      Folder("checkpoints"));
  const std::vector<std::string> undisturbed = Trained(1, 2, flags);
  for (int processes : {1, 2}) {
    std::filesystem::remove_all(Folder("checkpoints"));
    StartedOnes ones = Start(1, absl::StrCat(flags, " --ranks_per_process 2"));
    EXPECT_TRUE(Eventually([&] { return HasCheckpoint(Folder("checkpoints"), 10); }));
    ones[0]->Signal(SIGTERM);
    EXPECT_TRUE(WaitForAll(ones));
    EXPECT_THAT(ones[0]->Story(), Has("exit code 143"));
    // Rank 1 may be the first to end, because rank 0 gave up.
    EXPECT_THAT(ones[0]->errors(), Has("rank 0", "a checkpoint of step ")) << ones[0]->Story();
    EXPECT_EQ(Trained(processes, 2 / processes, flags + " --resume latest"), undisturbed);
  }
}

TEST_F(OneProcessTest, BadInputIsOneLine) {
  for (const auto& [flags, line] : std::map<std::string, std::string>{
           {"--strategy ring --ranks_per_process 0", "--ranks_per_process"},
           {"--strategy single --ranks_per_process 2", "single is one process; it cannot have 2 workers"},
           {"--strategy mpi --ranks_per_process 2", "MPI"},
           {"--clock virtual --ranks_per_process 2", "omit one of them"}}) {
    const auto one = Ended(StartTrainer(flags));
    EXPECT_TRUE(one->EndedWith(2)) << one->Story();
    EXPECT_THAT(one->errors(), OneLineWith(line)) << one->Story();
  }
}

TEST_F(OneProcessTest, NamesAProcessWithAnotherNumberOfRanks) {
  const std::string meet = absl::StrCat(" --rendezvous file://", Folder("meet"));
  StartedOnes ones;
  for (int process : {0, 1})
    ones.push_back(StartTrainer(
        absl::StrCat("--strategy ring ", kShortTraining, meet, " --ranks_per_process ", 2 + process),
        {absl::StrCat("RANK=", process), "WORLD_SIZE=2"}));
  EXPECT_TRUE(WaitForAll(ones));
  for (const auto& one : ones) EXPECT_FALSE(one->Succeeded()) << one->Story();
  EXPECT_THAT(ones[0]->errors() + ones[1]->errors(), Has("world size"))
      << ones[0]->Story() << ones[1]->Story();
}

TEST_F(OneProcessTest, PsringReportsTheLayoutOfRanks) {
  const std::string out = Folder("compared");
  Succeeded(StartPsring(absl::StrCat(
      "compare --strategies ring,ps-sync --workers 1,2,4 --ranks_per_process 2 --link none --repeats 1 "
      "--steps 4 --no_eval --model mlp-small --data synthetic --batch 16 --out ",
      out)));
  int rows = 0;
  for (const auto& row : nlohmann::json::parse(Slurp(out + "/summary.json"))) {
    const auto& figures = row["figures"];
    const std::string note = figures["note"].is_string() ? figures["note"].get<std::string>() : "";
    const int workers = figures["workers"];
    SCOPED_TRACE(absl::StrCat(figures["strategy"].get<std::string>(), " ", workers, ": ", note));
    ++rows;
    EXPECT_EQ(absl::StrContains(note, "2 ranks in one process"), workers == 2);
    EXPECT_EQ(absl::StrContains(note, "2 ranks per process"), workers == 4);
    EXPECT_EQ(std::filesystem::exists(absl::StrCat(out, "/records/cost-1/ring-4/log-ranks2-3.txt")), true);
    if (figures["strategy"] == "none" || figures["strategy"] == "single") continue;
    EXPECT_EQ(figures["replicas_equal"], true);
  }
  EXPECT_EQ(rows, 1 + 3 * 3);
  EXPECT_THAT(nlohmann::json::parse(Slurp(out + "/manifest.json")).dump(), Has("--ranks_per_process=2"));
}

TEST_F(OneProcessTest, WithoutWorkersPsringTrainsInOneProcess) {
  const std::string out = Folder("trained");
  const auto trained = Succeeded(StartPsring(
      absl::StrCat("train --strategy ring --ranks_per_process 3 --out ", out, " ", kShortTraining)));
  EXPECT_THAT(trained->output(), Has("ring x 3", "each process runs 3 workers as threads"));
  EXPECT_EQ(Weights(out).size(), 3);
}

class Synchronous : public OneProcessTest, public testing::WithParamInterface<const char*> {};

TEST_P(Synchronous, AllLayoutsEndWithTheSameBits) {
  const std::string flags = absl::StrCat("--strategy ", GetParam(), " ", kShortTraining);
  const std::vector<std::string> apart = Trained(4, 1, flags);
  ASSERT_EQ(apart.size(), 4) << "one process per rank";
  EXPECT_EQ(Trained(2, 2, flags), apart) << "two processes of two ranks";
  EXPECT_EQ(Trained(1, 4, flags), apart) << "one process without a launcher";
}

INSTANTIATE_TEST_SUITE_P(Strategies, Synchronous,
                         testing::Values("none", "ring --transport tcp",
                                         "ring --transport shm --micro_batches 2", "ring --wire bfloat16",
                                         "direct --drop_last false", "hierarchical:2 --transport tcp",
                                         "double-binary-tree --optimizer adam", "gloo",
                                         "ps-sync --deterministic",
                                         "ps-sync --deterministic --transport tcp --servers 2",
                                         "ps-sync --deterministic --server_placement colocated"),
                         [](const testing::TestParamInfo<const char*>& info) {
                           std::string name;
                           for (const char* c = info.param; *c != 0; ++c) {
                             if (isalnum(*c)) name += *c;
                           }
                           return name;
                         });

TEST_F(OneProcessTest, AsynchronousWorkersTrainInOneProcess) {
  for (const char* strategy : {"ps-async", "ps-ssp:1", "ps-backup:1", "ps-async --transport tcp"}) {
    SCOPED_TRACE(strategy);
    EXPECT_EQ(Trained(1, 3, absl::StrCat("--strategy ", strategy, " ", kShortTraining)).size(), 3);
  }
}

TEST_F(OneProcessTest, TheLastProcessIsTheDedicatedServer) {
  const std::string flags =
      absl::StrCat("--strategy ps-sync --deterministic --server_placement dedicated ", kShortTraining);
  const std::vector<std::string> weights = Trained(3, 2, flags);
  EXPECT_EQ(weights.size(), 4);
  EXPECT_EQ(weights, Trained(2, 2, absl::StrCat("--strategy ps-sync --deterministic ", kShortTraining)));
}

}  // namespace

}  // namespace psring
