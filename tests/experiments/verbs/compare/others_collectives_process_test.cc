// The real binary with Gloo's and MPI's collectives: compared, interrupted, killed.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/experiments/psring_in_a_folder.h"
#include "tests/has.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

// A strategy that this build and machine can run; else why not.
std::string WhyNot(const Outcome& dry_run) { return dry_run.exit_code == 0 ? "" : dry_run.err; }

class OthersCollectives : public PsringInAFolder, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    PsringInAFolder::SetUp();
    const std::string why = WhyNot(Run(
        Words("train --data synthetic --model mlp-small --workers 2 --dry_run --strategy " + GetParam())));
    if (!why.empty()) {
      EXPECT_THAT(why, Has("install"));
      GTEST_SKIP() << why;
    }
  }
};

TEST_P(OthersCollectives, AreComparedWithOursOverTheSameTransport) {
  const Outcome outcome = Succeed(
      "compare --data synthetic --model mlp-small --workers 2 --repeats 1 --steps 4 --no_eval "
      "--batch 32 --verbose --strategies ring," +
      GetParam());
  EXPECT_THAT(outcome.out, Has("All payload went over TCP."));
  const auto summary = JsonFile("runs/latest/summary.json");
  int found = 0;
  for (const auto& row : summary) {
    const auto& figures = row["figures"];
    if (figures["strategy"] != GetParam()) continue;
    ++found;
    EXPECT_EQ(figures["backend"], GetParam());
    EXPECT_EQ(figures["transport"], "tcp");
    EXPECT_GT(figures["samples_per_s"], 0);
    EXPECT_EQ(row["basis"]["payload_tx_bytes_per_worker"], "derived") << row["basis"];
  }
  EXPECT_EQ(found, 1);
}

// Channels between stages, and with two replicas their sums.
TEST_P(OthersCollectives, TrainPipelinesWithTheWeightsOfWholeModels) {
  const std::string step =
      "train --data synthetic --model mlp-small --batch 8 --micro_batches 4 --steps 4 --no_eval --timeout "
      "40 ";
  const auto hash = [&](const std::string& out, const std::string& launch, int rank) {
    return JsonFile(
        absl::StrCat(out, "/records/training-1/", launch, "/result-rank", rank, ".json"))["weights_hash"];
  };
  Succeed(step + "--strategy single --out single");
  Succeed(step + "--strategy ring --workers 2 --out ring");
  int number = 0;
  for (const auto& [workers, flags, launch] : {std::tuple(2, "", "-2-pp2-1f1b-m4"),
                                               {2, " --copy_streams 1", "-2-pp2-1f1b-m4-copy-1"},
                                               {4, " --program gpipe", "-4-pp2-gpipe-m4"}}) {
    SCOPED_TRACE(absl::StrCat(workers, " workers", flags));
    const std::string out = absl::StrCat("run", number++);
    Succeed(absl::StrCat(step, "--strategy ", GetParam(), " --workers ", workers, " --pp 2", flags, " --out ",
                         out));
    for (int rank = 0; rank < workers; ++rank) {
      EXPECT_EQ(hash(out, GetParam() + launch, rank),
                workers == 2 ? hash("single", "single-1", 0) : hash("ring", "ring-2", rank % 2));
    }
  }
}

// Gloo's ranks are psring's own processes, as those of a ring (psring_ends_process_test.cc).
class UnderMpirun : public OthersCollectives {};

TEST_P(UnderMpirun, CtrlCLeavesNothingBehind) {
  const pid_t psring = StartLongTraining(GetParam());
  kill(psring, SIGINT);
  const Outcome outcome = FinishSoon(psring);
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_EQ(outcome.err,
            absl::StrCat("psring train: interrupted (SIGINT); there are no results; the logs are in ", Out(),
                         "\n"));
  ExpectNoProcessWith(Out());
}

TEST_P(UnderMpirun, AKilledRankEndsTheRest) {
  const pid_t psring = StartLongTraining(GetParam());
  for (const std::string& process : Processes(LongRecords(GetParam()).string())) {
    const std::vector<std::string> variables =
        absl::StrSplit(Slurp(fs::path("/proc") / process / "environ"), '\0');
    for (const char* rank_1 : {"RANK=1", "OMPI_COMM_WORLD_RANK=1", "PMI_RANK=1"}) {
      if (std::find(variables.begin(), variables.end(), rank_1) != variables.end()) {
        kill(static_cast<pid_t>(std::stoi(process)), SIGKILL);
      }
    }
  }
  const Outcome outcome = FinishSoon(psring);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, Has("rank 1"));
  ExpectNoProcessWith(Out());
}

TEST_P(UnderMpirun, KillingPsringEndsItsRanks) {
  const pid_t psring = StartLongTraining(GetParam());
  kill(psring, SIGKILL);
  Finish(psring);
  ExpectNoProcessWith(Out());
}

INSTANTIATE_TEST_SUITE_P(All, OthersCollectives, testing::Values("gloo", "mpi"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(All, UnderMpirun, testing::Values("mpi"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace psring
