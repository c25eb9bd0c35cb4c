// Runs a real psring with checkpoints and kills its processes at random moments.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/io/checkpoint_folder.h"
#include "tests/eventually.h"
#include "tests/experiments/start_psring.h"
#include "tests/experiments/training_processes.h"
#include "tests/random_moments.h"

namespace psring {

constexpr absl::Duration kLong = absl::Seconds(100);  // a deadline for anything, also on a slow machine

class RestartTest : public LaunchTest {
 protected:
  RestartTest() {
    std::printf("PSRING_SEED=%lld\n", static_cast<long long>(seed_));
    std::filesystem::create_directories(Out("work"));
    std::filesystem::current_path(Out("work"));
  }
  // No process stays behind.
  void TearDown() override { EXPECT_TRUE(out_.empty() || AllEnd()); }
  ~RestartTest() override {
    psring_.reset();
    std::filesystem::current_path("/");
  }

  // Starts psring train with checkpoints; its run folder is `out`, or the default if empty.
  void Start(const std::string& strategy, const std::string& out, const std::string& more = "") {
    out_ = out;
    psring_ = StartPsring(absl::StrCat("train --link none --checkpoint_every 10 ", Training(strategy),
                                       out.empty() ? "" : " --out ", out, " ", more));
  }

  std::string Training(const std::string& strategy) const {
    return absl::StrCat("--model ", model_, " --data ", data_, " --steps ", steps_,
                        " --batch 16 --schedule linear --timeout 30 ", evaluates_ ? "" : "--no_eval ",
                        strategy);
  }

  int Wait() {
    return Eventually([&] { return !psring_->Look(); }, kLong) ? psring_->exit_code() : -1;
  }
  std::string output() const {
    psring_->Look();
    return psring_->output() + psring_->errors();
  }

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
  // psring succeeds, with these weights.
  void ExpectTheWeightsOf(const nlohmann::json& undisturbed) {
    EXPECT_EQ(Wait(), 0) << output();
    EXPECT_EQ(Hash(Out("run")), undisturbed["weights_hash"]);
  }
  nlohmann::json Row(const std::string& out) const {
    return nlohmann::json::parse(Slurp(std::filesystem::path(out) / "summary.json"))[0];
  }
  // The result of an undisturbed training, whose ranks are threads of one process.
  nlohmann::json Undisturbed(const std::string& strategy) const {
    const std::string as_threads = absl::StrReplaceAll(strategy, {{"--workers", "--ranks_per_process"}});
    const auto trained =
        Ended(StartTrainer(absl::StrCat(Training(as_threads), " --record ", Out("undisturbed"))));
    EXPECT_TRUE(trained->Succeeded()) << trained->Story();
    return Result(Out("undisturbed"));
  }
  std::string Out(const std::string& name) const { return LaunchTest::Folder(name); }
  std::string Folder() const { return Out("checkpoints"); }
  // A random step in the first third, so that a process that is then killed has work left.
  int64_t SomeStep() { return 10 + static_cast<int64_t>(random_() % (steps_ / 3 - 10)); }

  std::string out_;
  std::string model_ = "mlp-small";  // of runs started from now on
  std::string data_ = "synthetic";
  int steps_ = 150;
  bool evaluates_ = false;  // whether runs started from now on evaluate
  std::unique_ptr<Started> psring_;
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
