// Kills processes of a real psring, which restarts from a checkpoint.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/experiments/launch/restarts.h"
#include "tests/has.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

TEST_F(RestartTest, AKilledRankRestartsAllFromTheLastCheckpoint) {
  const auto undisturbed = Undisturbed(kRing);
  Start(kRing, Out("run"), absl::StrCat(kSlow, " --max_restarts 1 --checkpoint_dir ", Folder()));
  const pid_t rank1 = PidOf("rank 1");
  AwaitCheckpoint(Folder(), SomeStep());
  Kill(rank1, SIGKILL);
  ExpectTheWeightsOf(undisturbed);
  EXPECT_THAT(output(), Has("rank 1 was killed by SIGKILL", "all ranks are restarted from "));
  EXPECT_TRUE(AllEnd());
  // The newest two checkpoints, and no file of the killed writer.
  EXPECT_EQ(std::distance(fs::directory_iterator(Folder()), fs::directory_iterator()), 2);
}

TEST_F(RestartTest, AKilledProcessOfSeveralRanksRestartsAllFromTheLastCheckpoint) {
  const std::string four = "--strategy ring --workers 4";
  const auto undisturbed = Undisturbed(four);
  Start(absl::StrCat(four, " --ranks_per_process 2"), Out("run"),
        absl::StrCat(kSlow, " --max_restarts 1 --checkpoint_dir ", Folder()));
  const pid_t second = PidOf("rank 1");  // RANK counts processes
  AwaitCheckpoint(Folder(), SomeStep());
  Kill(second, SIGKILL);
  ExpectTheWeightsOf(undisturbed);
  EXPECT_THAT(output(), Has("the process of ranks 2 and 3 was killed by SIGKILL"));
}

TEST_F(RestartTest, OnlyAKilledServerIsRestartedButAKilledWorkerRestartsAll) {
  const auto undisturbed = Undisturbed(kSingle);
  Start(kServer, Out("run"), absl::StrCat(kSlow, " --max_restarts 3 --checkpoint_dir ", Folder()));
  const pid_t rank1 = PidOf("rank 1"), server = PidOf("server");
  AwaitCheckpoint(Folder(), SomeStep());
  Kill(server, SIGKILL);
  AwaitCheckpoint(Folder(), 50 + SomeStep());
  Kill(rank1, SIGKILL);
  AwaitCheckpoint(Folder(), 110);
  Kill(PidOf("server"), SIGKILL);  // of a job that was resumed from a checkpoint
  ExpectTheWeightsOf(undisturbed);
  EXPECT_THAT(output(),
              Has("the server was killed by SIGKILL (Killed); it is restarted", "1 restart is left"));
}

TEST_F(RestartTest, WorkersRestoreRoundingResidualsAfterAServerRestart) {
  const auto undisturbed = Undisturbed(kServerIn16Bits);
  Start(kServerIn16Bits, Out("run"), absl::StrCat(kSlow, " --max_restarts 2 --checkpoint_dir ", Folder()));
  for (int death = 0; death < 2; ++death) {
    AwaitCheckpoint(Folder(), steps_ / 3 * death + SomeStep());
    Kill(PidOf("server"), SIGKILL);
  }
  ExpectTheWeightsOf(undisturbed);
  EXPECT_THAT(output(), Lacks("is not known", "all ranks are restarted"));
}

// Workers have them; servers do not.
TEST_F(RestartTest, RunningStatisticsReturnToTheStepOfARestartedServer) {
  model_ = "resnet18 --width 16";
  steps_ = 40;
  Start(kServer, Out("calm"), absl::StrCat("--checkpoint_dir ", Out("undisturbed")));
  ASSERT_EQ(Wait(), 0) << output();
  Start(kServer, Out("run"), absl::StrCat("--max_restarts 1 --checkpoint_dir ", Folder()));
  AwaitCheckpoint(Folder(), SomeStep());
  Kill(PidOf("server"), SIGKILL);
  EXPECT_EQ(Wait(), 0) << output();
  EXPECT_THAT(output(), Has("it is restarted"));
  const auto model = [this](const std::string& folder) {
    return Slurp(fs::path(folder) / absl::StrCat("step", steps_) / kModelFile);
  };
  ASSERT_FALSE(model(Folder()).empty());
  EXPECT_TRUE(model(Folder()) == model(Out("undisturbed")));
}

// What a server saves for its own restart does not contain tables.
TEST_F(RestartTest, AKilledServerOfTablesRestartsAllFromTheLastCheckpoint) {
  constexpr char kHybrid[] = "--strategy hybrid --workers 2 --servers 2";
  model_ = "dlrm-small --width 8 --optimizer adagrad";
  data_ = "zipf:300:1";
  Start(kHybrid, Out("calm"), absl::StrCat("--checkpoint_dir ", Out("undisturbed")));
  ASSERT_EQ(Wait(), 0) << output();
  Start(kHybrid, Out("run"), absl::StrCat(kSlow, " --max_restarts 1 --checkpoint_dir ", Folder()));
  AwaitCheckpoint(Folder(), SomeStep());
  Kill(PidOf("server"), SIGKILL);
  EXPECT_EQ(Wait(), 0) << output();
  EXPECT_THAT(output(), testing::AllOf(Has("all ranks are restarted from "), Lacks("it is restarted")));
  for (const char* name : {kModelFile, kOptimizerFile}) {
    const auto last = [&](const std::string& folder) {
      return Slurp(fs::path(folder) / absl::StrCat("step", steps_) / name);
    };
    ASSERT_FALSE(last(Folder()).empty());
    EXPECT_TRUE(last(Folder()) == last(Out("undisturbed"))) << name;
  }
}

TEST_F(RestartTest, AKilledServerOfAStageRestartsAllFromTheLastCheckpoint) {
  const std::string served = "--strategy ps-sync --workers 4 --pp 2 --micro_batches 2 --deterministic";
  steps_ = 600;  // --jitter_ms is not for pipelines
  const auto undisturbed = Undisturbed(served);
  Start(served, Out("run"), absl::StrCat("--max_restarts 1 --checkpoint_dir ", Folder()));
  AwaitCheckpoint(Folder(), SomeStep());
  Kill(PidOf("server"), SIGKILL);
  ExpectTheWeightsOf(undisturbed);
  EXPECT_THAT(output(), testing::AllOf(Has("was killed by SIGKILL", "all ranks are restarted from "),
                                       Lacks("it is restarted")));
}

TEST_F(RestartTest, OnlyTheKilledServerOfTwoIsRestartedAndRestartsAreCountedTogether) {
  const auto undisturbed = Undisturbed(kSingle);
  Start(absl::StrCat(kServer, " --servers 2"), Out("run"),
        absl::StrCat(kSlow, " --max_restarts 2 --checkpoint_dir ", Folder()));
  for (int death = 0; death < 2; ++death) {
    AwaitCheckpoint(Folder(), steps_ / 3 * death + SomeStep());
    std::vector<pid_t> servers;
    for (const auto& [who, pid] : Processes()) {
      if (who == "server") servers.push_back(pid);
    }
    ASSERT_EQ(servers.size(), 2) << output();
    Kill(servers[death], SIGKILL);
  }
  ExpectTheWeightsOf(undisturbed);
  EXPECT_THAT(output(), Has("was killed by SIGKILL (Killed); it is restarted"));
  EXPECT_THAT(output(), Lacks("all ranks are restarted"));
}

// Only pushes since the server's last checkpoint are lost.
TEST_F(RestartTest, AnAsynchronousRunReachesItsAccuracyAfterServerRestarts) {
  evaluates_ = true;
  for (const std::string strategy : {"ps-async", "ps-ssp:2"}) {
    SCOPED_TRACE(strategy);
    const std::string flags = absl::StrCat("--strategy ", strategy, " --workers 2"), killed = Out(strategy);
    const auto curve = Undisturbed(flags)["curve"];
    const std::string folder = absl::StrCat(Folder(), strategy);
    Start(flags, killed, absl::StrCat(kSlow, " --max_restarts 2 --checkpoint_dir ", folder));
    for (int death = 0; death < 2; ++death) {
      AwaitCheckpoint(folder, steps_ / 3 * death + SomeStep());
      Kill(PidOf("server"), SIGKILL);
    }
    ASSERT_EQ(Wait(), 0) << output();
    EXPECT_THAT(output(), Lacks("all ranks are restarted"));
    const double undisturbed = curve.back()["test_accuracy"];
    EXPECT_GT(undisturbed, 0.5);
    EXPECT_NEAR(Row(killed)["figures"]["test_accuracy"], undisturbed, 0.05);
    EXPECT_TRUE(AllEnd());
  }
}

// Training is complete: nothing is left to measure, and the result is that of an undisturbed run.
TEST_F(RestartTest, AKillAfterTheLastStepKeepsTheResult) {
  evaluates_ = true;  // rank 0 has work after the last checkpoint
  for (const auto& [strategy, who] : {std::pair(kRing, "rank 0"), std::pair(kServer, "server"),
                                      std::pair("--strategy ps-async --workers 2", "server")}) {
    SCOPED_TRACE(absl::StrCat(strategy, ": ", who));
    std::string run = absl::StrCat(Out("run"), who, std::string(strategy).substr(11, 8));
    std::erase(run, ' ');
    const std::string folder = run + "-checkpoints";
    Start(strategy, run, absl::StrCat("--max_restarts 2 --checkpoint_dir ", folder));
    const pid_t victim = PidOf(who);
    AwaitCheckpoint(folder, steps_);
    kill(victim, SIGKILL);  // it may have ended
    EXPECT_EQ(Wait(), 0) << output();
    EXPECT_TRUE(AllEnd());
    EXPECT_GT(Row(run)["figures"]["test_accuracy"], 0.5) << output();
    EXPECT_GT(Row(run)["figures"]["step_ms"], 0.0) << output();
  }
}

TEST_F(RestartTest, ARankThatAlwaysDiesEndsTheJobAfterMaxRestarts) {
  Start(kRing, Out("run"), absl::StrCat(kSlow, " --max_restarts 2"));
  pid_t last = -1;
  for (int death = 0; death < 3; ++death) {
    last = PidOf("rank 1", last);
    Kill(last, SIGKILL);
  }
  EXPECT_EQ(Wait(), 1);
  EXPECT_THAT(psring_->errors(), Has("psring train: ring x 2: rank 1 was killed by SIGKILL")) << output();
}

}  // namespace
}  // namespace psring
