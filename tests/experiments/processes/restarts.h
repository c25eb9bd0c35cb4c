// Runs a real psring with checkpoints and kills its processes at random moments.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/io/checkpoint_folder.h"
#include "tests/eventually.h"
#include "tests/experiments/training_processes.h"
#include "tests/random_moments.h"

namespace psring {

constexpr absl::Duration kLong = absl::Seconds(100);  // a deadline for anything, also on a slow machine

class RestartTest : public testing::Test {
 protected:
  RestartTest()
      : root_(std::filesystem::path(testing::TempDir()) /
              absl::StrCat("psring-restart-", getpid(), "-",
                           testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::printf("PSRING_SEED=%lld\n", static_cast<long long>(seed_));
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_ / "work");
  }
  ~RestartTest() override {
    if (psring_ > 0) {
      kill(psring_, SIGKILL);
      waitpid(psring_, nullptr, 0);
    }
    std::filesystem::remove_all(root_);
  }

  // Starts psring train with checkpoints; its run folder is `out`, or the default if empty.
  void Start(const std::string& strategy, const std::string& out, const std::string& more = "") {
    fflush(nullptr);  // buffered output must not be written twice
    out_ = out;
    psring_ = fork();
    if (psring_ != 0) return;
    if (chdir((root_ / "work").c_str()) != 0) _exit(126);
    if (freopen((root_ / "out").c_str(), "w", stdout) == nullptr) _exit(126);
    if (freopen((root_ / "err").c_str(), "w", stderr) == nullptr) _exit(126);
    std::vector<std::string> arguments =
        absl::StrSplit(absl::StrCat("psring train --link none --checkpoint_every 10 ", Training(strategy),
                                    out.empty() ? "" : " --out ", out, more.empty() ? "" : " ", more),
                       ' ');
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    execv(PSRING_BINARY, argv.data());
    _exit(127);
  }

  std::string Training(const std::string& strategy) const {
    return absl::StrCat("--model ", model_, " --data ", data_, " --steps ", steps_,
                        " --batch 16 --schedule linear --timeout 30 ", evaluates_ ? "" : "--no_eval ",
                        strategy);
  }

  int Wait() {
    int status = 0;
    if (!Eventually([&] { return waitpid(psring_, &status, WNOHANG) == psring_; }, kLong)) return -1;
    psring_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string output() const { return Slurp(root_ / "out") + Slurp(root_ / "err"); }

  std::vector<std::pair<std::string, pid_t>> Processes() const { return TrainingProcesses(out_); }
  void Kill(pid_t pid, int signal) const {
    ASSERT_GT(pid, 1) << "no such process: " << output();  // kill(-1) would signal all processes
    kill(pid, signal);
  }
  // Waits until `who` runs in a process other than `previous`. -1: there is none.
  pid_t PidOf(const std::string& who, pid_t previous = -1) const {
    pid_t found = -1;
    (void)Eventually(
        [&] {
          for (const auto& [name, pid] : Processes()) {
            if (name == who && pid != previous) found = pid;
          }
          return found > 0;
        },
        kLong);
    return found;
  }
  bool AllEnd() const {
    return Eventually([this] { return Processes().empty(); }, kLong);
  }

  // Waits for a checkpoint of `step` or a later one.
  void AwaitCheckpoint(const std::filesystem::path& folder, int64_t step) const {
    ASSERT_TRUE(Eventually([&] { return HasCheckpoint(folder.string(), step); }, kLong))
        << "no checkpoint of step " << step << ": " << output();
  }

  // Of rank 0, with records below `out`.
  static nlohmann::json Result(const std::string& out) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(out)) {
      if (entry.path().filename() == "result-rank0.json") return nlohmann::json::parse(Slurp(entry.path()));
    }
    return {{"weights_hash", ""}};
  }
  static std::string Hash(const std::string& out) { return Result(out)["weights_hash"].get<std::string>(); }
  nlohmann::json Row(const std::string& out) const {
    return nlohmann::json::parse(Slurp(std::filesystem::path(out) / "summary.json"))[0];
  }
  // The result of an undisturbed training, whose ranks are threads of one process.
  nlohmann::json Undisturbed(const std::string& strategy) const {
    const std::string as_threads = absl::StrReplaceAll(strategy, {{"--workers", "--ranks_per_process"}});
    EXPECT_EQ(std::system(absl::StrCat(PSRING_TRAINER, " ", Training(as_threads), " --record ",
                                       Out("undisturbed"), " >", Out("out"), " 2>", Out("err"))
                              .c_str()),
              0)
        << output();
    return Result(Out("undisturbed"));
  }
  std::string Out(const std::string& name) const { return (root_ / name).string(); }
  std::string Folder() const { return (root_ / "checkpoints").string(); }
  // A random step in the first third, so that a process that is then killed has work left.
  int64_t SomeStep() { return 10 + static_cast<int64_t>(random_() % (steps_ / 3 - 10)); }

  const std::filesystem::path root_;
  std::string out_;
  std::string model_ = "mlp-small";  // of runs started from now on
  std::string data_ = "synthetic";
  int steps_ = 150;
  bool evaluates_ = false;  // whether runs started from now on evaluate
  pid_t psring_ = -1;
  const int64_t seed_ = FromEnvironment("PSRING_SEED", 1);
  std::mt19937 random_{static_cast<uint32_t>(seed_)};
};

constexpr char kSlow[] = "--jitter_ms 2";  // leaves time to kill processes; weights are the same
constexpr char kSingle[] = "--strategy single --reference_workers 2";
constexpr char kRing[] = "--strategy ring --workers 2";
constexpr char kThreads[] = "--strategy ring --workers 2 --ranks_per_process 2";
constexpr char kServer[] = "--strategy ps-sync --workers 2 --deterministic";
// Rounding residuals are part of each rank's state.
constexpr char kRingIn16Bits[] = "--strategy ring --workers 3 --wire bfloat16";
constexpr char kServerIn16Bits[] = "--strategy ps-sync --workers 2 --deterministic --wire bfloat16";

}  // namespace psring
