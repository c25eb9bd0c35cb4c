// Trainers that are killed or get signals, and what the other processes do.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/trainer/main/trainer_process.h"

namespace psring {
namespace {

constexpr char kEndlessly[] = " --model mlp-small --data synthetic --steps 1000000 --progress json --no_eval";

// Names in /dev/shm that may be psring's.
// Folders belong to launchers of other tests that run at the same time.
std::set<std::string> SharedFiles() {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    std::error_code gone;
    if (!entry.is_directory(gone) && name.find("psring") != std::string::npos) names.insert(name);
  }
  return names;
}

class Killed : public TrainerProcess, public testing::WithParamInterface<std::string> {};

TEST_P(Killed, OverSharedMemoryStopsTheRestAndLeavesNoFiles) {
  const bool kill_server = GetParam() == "server";
  const std::set<std::string> before = SharedFiles();
  const auto server = StartServer(0, 1, 2);
  const auto ranks = StartTrainers(2, absl::StrCat("--strategy ps-sync --transport shm", kEndlessly));
  const auto &rank0 = ranks[0], &rank1 = ranks[1];
  ASSERT_TRUE(MakesSteps(*rank0)) << rank0->errors();
  if (kill_server) {
    server->Signal(SIGKILL);
    EXPECT_EQ(rank1->Wait(), 1);
  } else {
    rank1->Signal(SIGKILL);
    EXPECT_EQ(server->Wait(), 1);
    EXPECT_THAT(server->errors(), Has("worker 1 was lost"));
  }
  EXPECT_EQ(rank0->Wait(), 1);
  const std::string says = kill_server ? "lost the parameter server" : "worker 1 was lost";
  EXPECT_THAT(rank0->errors(), Has(says));
  EXPECT_EQ(SharedFiles(), before);
}

INSTANTIATE_TEST_SUITE_P(TrainerProcess, Killed, testing::Values("worker", "server"),
                         [](const auto& info) { return info.param; });

TEST_F(TrainerProcess, NamesRanksWithDifferentFlags) {
  const auto rank0 = StartTrainer(0, 2, absl::StrCat("--strategy ring", kShort));
  const auto rank1 = StartTrainer(1, 2, absl::StrCat("--strategy ring --lr 0.5", kShort));
  EXPECT_EQ(rank0->Wait(), 1);
  EXPECT_EQ(rank1->Wait(), 1);
  EXPECT_THAT(rank0->errors(), Has("trainer: rank 0: ", "--lr=0.5"));
}

TEST_F(TrainerProcess, AKilledRankStopsTheOther) {
  const auto ranks = StartTrainers(2, absl::StrCat("--strategy ring", kEndlessly));
  const auto &rank0 = ranks[0], &rank1 = ranks[1];
  ASSERT_TRUE(MakesSteps(*rank0)) << rank0->errors();
  rank1->Signal(SIGKILL);
  EXPECT_EQ(rank0->Wait(), 1);
  EXPECT_THAT(rank0->errors(), Has("rank 1", "step "));
  EXPECT_FALSE(fs::exists(dir_ / "records" / "result-rank0.json"));
}

TEST_F(TrainerProcess, ATerminatedRankStopsAndReportsIt) {
  const auto ranks = StartTrainers(2, absl::StrCat("--strategy ring", kEndlessly));
  const auto &rank0 = ranks[0], &rank1 = ranks[1];
  ASSERT_TRUE(MakesSteps(*rank0)) << rank0->errors();
  rank0->Signal(SIGTERM);
  EXPECT_EQ(rank0->Wait(), 143);
  EXPECT_THAT(rank0->errors(), Has("stopped by SIGTERM"));
  EXPECT_EQ(rank1->Wait(), 1);
  EXPECT_THAT(rank1->errors(), Has("rank 0"));
}

TEST_F(TrainerProcess, ATerminatedRank0OfFsdpSavesTheStateOfAllRanks) {
  const fs::path kept = dir_ / "kept";
  const auto ranks =
      StartTrainers(2, absl::StrCat("--strategy fsdp --checkpoint_dir ", kept.string(), kEndlessly));
  const auto &rank0 = ranks[0], &rank1 = ranks[1];
  ASSERT_TRUE(MakesSteps(*rank0)) << rank0->errors();
  rank0->Signal(SIGTERM);
  EXPECT_EQ(rank0->Wait(), 143);
  EXPECT_THAT(rank0->errors(), Has("stopped by a signal after writing a checkpoint of step"));
  EXPECT_EQ(rank1->Wait(), 1);
  EXPECT_THAT(rank1->errors(), Has("rank 0"));
  bool has_state = false;
  for (const auto& entry : fs::directory_iterator(kept)) {
    has_state = has_state || fs::exists(entry.path() / "optimizer.safetensors");
  }
  EXPECT_TRUE(has_state);
}

TEST_F(TrainerProcess, IgnoresASigintThatItsParentIgnored) {
  Child trainer(
      {"/bin/sh", "-c",
       absl::StrCat("trap '' HUP INT; exec ", PSRING_TRAINER,
                    " --strategy single --model mlp-small --data synthetic --steps 1000000 --no_eval "
                    "--progress json")},
      std::vector<std::string>());
  ASSERT_TRUE(MakesSteps(trainer)) << trainer.errors();
  for (const int signal : {SIGHUP, SIGINT}) trainer.Signal(signal);
  const size_t before = trainer.output().size();
  EXPECT_TRUE(Eventually([&] { return trainer.output().size() >= before + 1000; })) << trainer.errors();
  trainer.Signal(SIGTERM);
  EXPECT_EQ(trainer.Wait(), 128 + SIGTERM);
}

TEST_F(TrainerProcess, RejectsASecondTrainerWithTheSameRecordFolder) {
  const std::string flags =
      absl::StrCat("--strategy single --model mlp-small --data synthetic --no_eval --record ",
                   (dir_ / "records").string(), " --steps ");
  const auto first = StartAlone(absl::StrCat(flags, "1000000 --progress json"));
  ASSERT_TRUE(MakesSteps(*first)) << first->errors();
  const auto second = StartAlone(absl::StrCat(flags, "3"));
  EXPECT_EQ(second->Wait(), 1);
  const std::string path = (dir_ / "records" / "steps-rank0.jsonl").string();
  EXPECT_EQ(second->errors(), absl::StrCat("trainer: cannot write ", path,
                                           ": another run is writing it; give each run its own --record "
                                           "folder\n"));
  first->Signal(SIGKILL);
  EXPECT_EQ(first->Wait(), 128 + SIGKILL);
  // A killed run does not block the folder.
  ExpectSuccess(*StartAlone(absl::StrCat(flags, "3")));
  EXPECT_EQ(Result(0).steps, 3);
}

// The kernel ensures this even between the rank's start and MPI_Init.
TEST_F(TrainerProcess, ARankExitsIfMpirunIsKilled) {
  const std::string record = (dir_ / "orphan").string();
  const auto running = [&] {
    for (const auto& entry : fs::directory_iterator("/proc")) {
      std::ifstream file(entry.path() / "cmdline");
      std::stringstream line;
      line << file.rdbuf();
      if (line.str().starts_with(PSRING_TRAINER) && line.str().find(record) != std::string::npos) return true;
    }
    return false;
  };
  Child mpirun(
      {"/bin/sh", "-c",
       absl::StrCat(PSRING_TRAINER, " --strategy none --data synthetic --steps 100000 --no_eval --record ",
                    record, " & wait")},
      std::vector<std::string>{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1",
                               absl::StrCat("MASTER_PORT=", store_->port()), "PSRING_STORE_HOSTED=1"});
  ASSERT_TRUE(Eventually([&] { return running() && fs::exists(record); }));
  mpirun.Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return !running(); }));
}

}  // namespace
}  // namespace psring
