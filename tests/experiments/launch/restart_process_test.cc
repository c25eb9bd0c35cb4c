// Kills processes of a real psring, which restarts from a checkpoint.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
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

// Kills or interrupts a real psring and resumes from its checkpoints.

class Killed : public RestartTest, public testing::WithParamInterface<const char*> {
 protected:
  const char* Records() const {
    const absl::string_view what = GetParam();
    return what == kSingle         ? "single-1"
           : what == kRingIn16Bits ? "ring-3"
           : what == kThreads      ? "ring-2"
                                   : "ps-sync-2";
  }
  // The undisturbed reference takes no delays.
  std::string Slowly() const { return GetParam() == std::string(kSingle) ? "" : absl::StrCat(kSlow, " "); }
  // Strategies that end with the same bits.
  std::string Reference() const { return GetParam() == std::string(kThreads) ? kRing : GetParam(); }
};

// Killed; resumed from the folder of checkpoints and stopped; resumed from that run.
TEST_P(Killed, AfterSigkillAndSigtermAResumedRunEndsWithTheSameWeights) {
  const auto undisturbed = Undisturbed(Reference());
  Start(GetParam(), Out("killed"), absl::StrCat(Slowly(), "--checkpoint_dir ", Folder(), " --resume latest"));
  AwaitCheckpoint(Folder(), SomeStep());
  Kill(psring_->pid(), SIGKILL);
  EXPECT_EQ(Wait(), 128 + SIGKILL);

  Start(GetParam(), Out("stopped"), absl::StrCat(Slowly(), "--resume ", Folder()));
  const fs::path folder = fs::path(Out("stopped")) / "records" / "training-1" / Records() / "checkpoints";
  AwaitCheckpoint(folder, SomeStep());
  Kill(psring_->pid(), SIGTERM);
  EXPECT_EQ(Wait(), 128 + SIGTERM) << output();
  EXPECT_TRUE(AllEnd());
  const std::string newest = ListCheckpoints(folder.string()).front().path;
  EXPECT_THAT(output(), Has(absl::StrCat("--resume ", newest)));

  Start(GetParam(), Out("resumed"), absl::StrCat("--resume ", Out("stopped")));
  EXPECT_EQ(Wait(), 0) << output();
  EXPECT_THAT(output(), Has("resumed after step "));
  EXPECT_EQ(Hash(Out("resumed")), undisturbed["weights_hash"]);
}

std::string NameOf(const testing::TestParamInfo<const char*>& info) {
  const std::vector<std::string> names = {"Single", "RingIn16Bits", "ServerIn16Bits", "Threads"};
  return names[info.index];
}

// What a ring and a server keep in float32 is a part of what they keep in 16 bits.
INSTANTIATE_TEST_SUITE_P(Strategies, Killed,
                         testing::Values(kSingle, kRingIn16Bits, kServerIn16Bits, kThreads), NameOf);

TEST_F(RestartTest, LatestIsThePreviousRunOfAnyStrategyAndDroppedStateIsReported) {
  Start(kRing, "");
  EXPECT_EQ(Wait(), 0) << output();
  EXPECT_THAT(output(), Has(absl::StrCat("/step", steps_)));
  Start("--strategy ps-async --workers 2", "", "--resume latest");
  EXPECT_EQ(Wait(), 0) << "finished: " << output();
  EXPECT_THAT(output(), Has("this training is finished; nothing is left to train",
                            absl::StrCat("all workers continue with step ", steps_, ": asynchronous"),
                            "the optimizer is sgd and was momentum"));
}

TEST_F(RestartTest, InvalidResumeFailsWithOneLineBeforeAnythingStarts) {
  fs::create_directories("empty");
  fs::create_directories("broken/step3");
  std::ofstream(absl::StrCat("broken/step3/", kPositionFile)) << "{";
  std::ofstream("broken.safetensors") << "x";
  for (const auto& [flags, says] : {std::pair{"--resume nowhere", "nowhere does not exist"},
                                    {"--resume empty", "there is no checkpoint"},
                                    {"--resume broken", "step3"},
                                    {"--resume broken.safetensors", "it ends early"},
                                    {"--resume latest", "runs/latest"},
                                    {"--checkpoint_keep 0", "--checkpoint_keep"}}) {
    Start(kRing, Out("bad"), flags);
    EXPECT_EQ(Wait(), 2) << flags << ": " << output();
    EXPECT_THAT(output(), OneLineWith(says));
    EXPECT_FALSE(fs::exists(Out("bad")));
  }
}

}  // namespace
}  // namespace psring
