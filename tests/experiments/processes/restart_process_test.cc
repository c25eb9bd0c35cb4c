// The real psring, with processes that are killed at moments that nobody chose: what it kept, where it goes
// on, and that nothing is left.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/checkpoint_folder.h"
#include "tests/experiments/training_processes.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kLong = absl::Seconds(100);  // nothing takes so long, however slow the machine

class RestartTest : public testing::Test {
 protected:
  RestartTest()
      : root_(fs::path(testing::TempDir()) /
              absl::StrCat("psring-restart-", getpid(), "-",
                           testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(root_);
    fs::create_directories(root_ / "work");
  }
  ~RestartTest() override {
    if (psring_ > 0) {
      kill(psring_, SIGKILL);
      waitpid(psring_, nullptr, 0);
    }
    fs::remove_all(root_);
  }

  // psring train, with checkpoints; its records in `out`, or where it puts them itself.
  void Start(const std::string& strategy, const std::string& out, const std::string& more = "") {
    fflush(nullptr);  // or the child would write it again
    out_ = out;
    psring_ = fork();
    if (psring_ != 0) return;
    if (chdir((root_ / "work").c_str()) != 0) _exit(126);
    if (freopen((root_ / "out").c_str(), "w", stdout) == nullptr) _exit(126);
    if (freopen((root_ / "err").c_str(), "w", stderr) == nullptr) _exit(126);
    std::vector<std::string> arguments = absl::StrSplit(
        absl::StrCat(
            "psring train --model mlp-small --data synthetic --steps 300 --batch 16 --no_eval --link none "
            "--schedule linear --checkpoint_every 10 --timeout 30 ",
            strategy, out.empty() ? "" : " --out ", out, more.empty() ? "" : " ", more),
        ' ');
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    execv(PSRING_BINARY, argv.data());
    _exit(127);
  }

  int Wait() {
    int status = 0;
    for (const absl::Time deadline = absl::Now() + kLong; absl::Now() < deadline;) {
      if (waitpid(psring_, &status, WNOHANG) == psring_) {
        psring_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
    return -1;
  }
  std::string output() const { return Slurp(root_ / "out") + Slurp(root_ / "err"); }

  std::vector<std::pair<std::string, pid_t>> Processes() const { return TrainingProcesses(out_); }
  // Never anybody else: kill(-1) would be everybody.
  void Kill(pid_t pid, int signal) const {
    ASSERT_GT(pid, 1) << "it is not there: " << output();
    kill(pid, signal);
  }
  pid_t PidOf(const std::string& who) const {
    for (const absl::Time deadline = absl::Now() + kLong; absl::Now() < deadline;) {
      for (const auto& [name, pid] : Processes()) {
        if (name == who) return pid;
      }
      absl::SleepFor(absl::Milliseconds(1));
    }
    return -1;
  }
  bool AllEnd() const {
    for (const absl::Time deadline = absl::Now() + kLong; absl::Now() < deadline;) {
      if (Processes().empty()) return true;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return false;
  }

  // Waits until a checkpoint of that step or a later one is there.
  void AwaitCheckpoint(const fs::path& folder, int64_t step) const {
    if (psring::AwaitCheckpoint(folder.string(), step, absl::Now() + kLong)) return;
    FAIL() << "no checkpoint of step " << step << ": " << output();
  }

  std::string Hash(const std::string& out) const {
    for (const auto& entry : fs::recursive_directory_iterator(out)) {
      if (entry.path().filename() != "result-rank0.json") continue;
      return nlohmann::json::parse(Slurp(entry.path()))["weights_hash"].get<std::string>();
    }
    return "";
  }
  // Of a run that nobody disturbs; each is made once.
  std::string Undisturbed(const std::string& strategy) {
    static std::map<std::string, std::string> known;
    std::string& hash = known[strategy];
    if (!hash.empty()) return hash;
    const std::string out = Out("undisturbed");
    Start(strategy, out);
    EXPECT_EQ(Wait(), 0) << output();
    return hash = Hash(out);
  }
  std::string Out(const std::string& name) const { return (root_ / name).string(); }
  std::string Folder() const { return (root_ / "checkpoints").string(); }
  // Some step long before the end.
  int64_t SomeStep() { return 10 + static_cast<int64_t>(random_() % 90); }

  const fs::path root_;
  std::string out_;
  pid_t psring_ = -1;
  std::mt19937 random_{std::random_device{}()};
};

constexpr char kSingle[] = "--strategy single --micro_batches 2";
constexpr char kRing[] = "--strategy ring --workers 2 --jitter_ms 2";
constexpr char kThreads[] = "--strategy ring --workers 2 --jitter_ms 2 --ranks_per_process 2";
constexpr char kServer[] = "--strategy ps-sync --workers 2 --deterministic --jitter_ms 2";
// What rounding leaves of each rank's gradients is a state of its own.
constexpr char kRingIn16Bits[] = "--strategy ring --workers 3 --jitter_ms 2 --wire bfloat16";
constexpr char kServerIn16Bits[] =
    "--strategy ps-sync --workers 2 --deterministic --jitter_ms 2 --wire bfloat16";

TEST_F(RestartTest, AKilledRankOfARingEndsAllAndTheyGoOnFromTheLastCheckpoint) {
  const std::string undisturbed = Undisturbed(kRing);
  Start(kRing, Out("run"), absl::StrCat("--max_restarts 1 --checkpoint_dir ", Folder()));
  const pid_t rank1 = PidOf("rank 1");
  AwaitCheckpoint(Folder(), SomeStep());
  Kill(rank1, SIGKILL);
  EXPECT_EQ(Wait(), 0) << output();
  EXPECT_EQ(Hash(Out("run")), undisturbed);
  EXPECT_TRUE(absl::StrContains(output(), "rank 1 was killed by SIGKILL")) << output();
  EXPECT_TRUE(absl::StrContains(output(), "all ranks are started again, from ")) << output();
  EXPECT_TRUE(AllEnd());
  // Nothing of the writer that was killed, and no more than the newest two.
  EXPECT_EQ(std::distance(fs::directory_iterator(Folder()), fs::directory_iterator()), 2);
}

TEST_F(RestartTest, AKilledProcessTakesItsRanksWithItAndAllGoOnFromTheLastCheckpoint) {
  const std::string four = "--strategy ring --workers 4 --jitter_ms 2";
  const std::string undisturbed = Undisturbed(four);
  Start(absl::StrCat(four, " --ranks_per_process 2"), Out("run"),
        absl::StrCat("--max_restarts 1 --checkpoint_dir ", Folder()));
  const pid_t second = PidOf("rank 1");  // of the processes
  AwaitCheckpoint(Folder(), SomeStep());
  Kill(second, SIGKILL);
  EXPECT_EQ(Wait(), 0) << output();
  EXPECT_EQ(Hash(Out("run")), undisturbed);
  EXPECT_TRUE(absl::StrContains(output(), "the process of ranks 2 and 3 was killed by SIGKILL")) << output();
  EXPECT_TRUE(AllEnd());
}

TEST_F(RestartTest, AKilledServerComesBackAloneAndAKilledWorkerTakesAllWithIt) {
  const std::string undisturbed = Undisturbed(kSingle);
  Start(kServer, Out("run"), absl::StrCat("--max_restarts 3 --checkpoint_dir ", Folder()));
  const pid_t rank1 = PidOf("rank 1"), server = PidOf("server");
  AwaitCheckpoint(Folder(), SomeStep());
  Kill(server, SIGKILL);
  AwaitCheckpoint(Folder(), 100 + SomeStep());
  Kill(rank1, SIGKILL);
  AwaitCheckpoint(Folder(), 210);
  Kill(PidOf("server"), SIGKILL);  // that of a job which began from a checkpoint
  EXPECT_EQ(Wait(), 0) << output();
  EXPECT_EQ(Hash(Out("run")), undisturbed);
  EXPECT_TRUE(absl::StrContains(output(), "the server was killed by SIGKILL (Killed); it is started anew"))
      << output();
  EXPECT_TRUE(absl::StrContains(output(), "1 restart is left")) << output();
  EXPECT_TRUE(AllEnd());
}

TEST_F(RestartTest, WorkersGoBackWithAKilledServerToWhatRoundingHadLeftThen) {
  const std::string undisturbed = Undisturbed(kServerIn16Bits);
  Start(kServerIn16Bits, Out("run"), absl::StrCat("--max_restarts 2 --checkpoint_dir ", Folder()));
  for (int death = 0; death < 2; ++death) {
    AwaitCheckpoint(Folder(), 100 * death + SomeStep());
    Kill(PidOf("server"), SIGKILL);
  }
  EXPECT_EQ(Wait(), 0) << output();
  EXPECT_EQ(Hash(Out("run")), undisturbed);
  EXPECT_FALSE(absl::StrContains(output(), "is not known")) << output();
  EXPECT_FALSE(absl::StrContains(output(), "all ranks are started again")) << output();
  EXPECT_TRUE(AllEnd());
}

TEST_F(RestartTest, OneOfTwoServersComesBackAloneAndTheirRestartsAreCountedTogether) {
  const std::string undisturbed = Undisturbed(kSingle);
  Start(absl::StrCat(kServer, " --servers 2"), Out("run"),
        absl::StrCat("--max_restarts 2 --checkpoint_dir ", Folder()));
  for (int death = 0; death < 2; ++death) {
    AwaitCheckpoint(Folder(), 100 * death + SomeStep());
    std::vector<pid_t> servers;
    for (const auto& [who, pid] : Processes()) {
      if (who == "server") servers.push_back(pid);
    }
    ASSERT_EQ(servers.size(), 2) << output();
    Kill(servers[death], SIGKILL);
  }
  EXPECT_EQ(Wait(), 0) << output();
  EXPECT_EQ(Hash(Out("run")), undisturbed);
  EXPECT_TRUE(absl::StrContains(output(), "was killed by SIGKILL (Killed); it is started anew")) << output();
  EXPECT_FALSE(absl::StrContains(output(), "all ranks are started again")) << output();
  EXPECT_TRUE(AllEnd());
}

TEST_F(RestartTest, ARankThatAlwaysDiesEndsTheJobAfterSoManyRestarts) {
  Start(kRing, Out("run"), "--max_restarts 2");
  pid_t last = -1;
  for (int death = 0; death < 3; ++death) {
    pid_t pid = last;
    for (const absl::Time deadline = absl::Now() + kLong; pid == last && absl::Now() < deadline;) {
      pid = PidOf("rank 1");
    }
    ASSERT_NE(pid, last);
    Kill(pid, SIGKILL);
    last = pid;
  }
  EXPECT_EQ(Wait(), 1);
  EXPECT_TRUE(absl::StrContains(Slurp(root_ / "err"), "psring train: ring x 2: rank 1 was killed by SIGKILL"))
      << output();
  EXPECT_TRUE(AllEnd());
}

class Killed : public RestartTest, public testing::WithParamInterface<const char*> {
 protected:
  const char* Records() const {
    const absl::string_view what = GetParam();
    return what == kSingle                     ? "single-1"
           : what == kRingIn16Bits             ? "ring-3"
           : what == kRing || what == kThreads ? "ring-2"
                                               : "ps-sync-2";
  }
  // The server adds as one process does that makes both batches; threads as processes do.
  std::string Reference() const {
    return GetParam() == std::string(kServer)    ? kSingle
           : GetParam() == std::string(kThreads) ? kRing
                                                 : GetParam();
  }
};

TEST_P(Killed, ByKillNineOfPsringItselfNothingIsLeftAndAResumedRunEndsTheSame) {
  const std::string undisturbed = Undisturbed(Reference());
  const std::string checkpoints = absl::StrCat("--checkpoint_dir ", Folder(), " --resume latest");
  Start(GetParam(), Out("killed"), checkpoints);
  AwaitCheckpoint(Folder(), SomeStep());
  Kill(psring_, SIGKILL);
  EXPECT_EQ(Wait(), 128 + SIGKILL);
  EXPECT_TRUE(AllEnd());
  Start(GetParam(), Out("resumed"), checkpoints);
  EXPECT_EQ(Wait(), 0) << output();
  EXPECT_EQ(Hash(Out("resumed")), undisturbed);
}

TEST_P(Killed, BySigtermACheckpointOfThatVeryStepIsKept) {
  const std::string undisturbed = Undisturbed(Reference());
  // Every step one would be too many: so it is the signal's if it is between two.
  Start(GetParam(), Out("stopped"));
  const fs::path folder = fs::path(Out("stopped")) / "records" / "training-1" / Records() / "checkpoints";
  AwaitCheckpoint(folder, SomeStep());
  Kill(psring_, SIGTERM);
  EXPECT_EQ(Wait(), 130) << output();
  EXPECT_TRUE(AllEnd());
  const std::string newest = ListCheckpoints(folder.string()).front().path;
  EXPECT_TRUE(absl::StrContains(output(), absl::StrCat("--resume ", newest))) << output();
  Start(GetParam(), Out("resumed"), absl::StrCat("--resume ", Out("stopped")));
  EXPECT_EQ(Wait(), 0) << output();
  EXPECT_EQ(Hash(Out("resumed")), undisturbed);
}

std::string NameOf(const testing::TestParamInfo<const char*>& info) {
  const std::vector<std::string> names = {"Single",       "Ring",           "Server",
                                          "RingIn16Bits", "ServerIn16Bits", "Threads"};
  return names[info.index];
}

INSTANTIATE_TEST_SUITE_P(Strategies, Killed,
                         testing::Values(kSingle, kRing, kServer, kRingIn16Bits, kServerIn16Bits, kThreads),
                         NameOf);

TEST_F(RestartTest, LatestIsTheRunBeforeUnderAnyStrategyAndWhatIsNotCarriedOverIsSaid) {
  Start(kRing, "");
  EXPECT_EQ(Wait(), 0) << output();
  EXPECT_TRUE(absl::StrContains(output(), "/step300")) << output();
  Start("--strategy ps-async --workers 2", "", "--resume latest");
  EXPECT_EQ(Wait(), 2) << output();
  EXPECT_TRUE(absl::StrContains(output(), "nothing is left to train")) << output();
  EXPECT_TRUE(absl::StrContains(output(), "all workers go on with step 300: asynchronous")) << output();
  EXPECT_TRUE(absl::StrContains(output(), "the optimizer is sgd and was momentum")) << output();
}

TEST_F(RestartTest, WhatCannotBeResumedIsOneLineBeforeAnythingStarts) {
  fs::create_directories(root_ / "work" / "empty");
  fs::create_directories(root_ / "work" / "broken" / "step3");
  std::ofstream(root_ / "work" / "broken" / "step3" / kPositionFile) << "{";
  std::ofstream(root_ / "work" / "broken.safetensors") << "x";
  for (const auto& [flags, says] : {std::pair{"--resume nowhere", "there is no nowhere"},
                                    {"--resume empty", "there is no checkpoint"},
                                    {"--resume broken", "step3"},
                                    {"--resume broken.safetensors", "it ends early"},
                                    {"--resume latest", "runs/latest"},
                                    {"--checkpoint_keep 0", "--checkpoint_keep"}}) {
    Start(kRing, Out("bad"), flags);
    EXPECT_EQ(Wait(), 2) << flags << ": " << output();
    const std::string text = output();
    EXPECT_TRUE(absl::StrContains(text, says)) << text;
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
    EXPECT_FALSE(fs::exists(Out("bad")));
  }
}

}  // namespace
}  // namespace psring
