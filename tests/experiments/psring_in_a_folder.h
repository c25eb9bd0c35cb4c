// Runs the real psring in a folder of the test.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "experiments/psring.h"
#include "tests/experiments/slurp.h"
#include "tests/experiments/started.h"
#include "tests/has.h"
#include "tests/test_folder.h"

namespace psring {

// The processes whose command lines contain `folder`.
inline std::vector<std::string> Processes(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string line = Slurp(entry.path() / "cmdline");
    if (absl::StrContains(line, folder)) found.push_back(entry.path().filename().string());
  }
  return found;
}

struct Outcome {
  int exit_code = -1;
  std::string out, err;
};

// psring runs in `root_`/work; its output goes to `root_`/out and `root_`/err.
class PsringInAFolder : public testing::Test {
 protected:
  // `begin`: the first arguments, such as the verb.
  explicit PsringInAFolder(std::vector<std::string> begin = {}) : begin_(std::move(begin)) {}
  void SetUp() override { std::filesystem::create_directories(root_ / "work"); }

  pid_t Start(const std::vector<std::string>& arguments) {
    fflush(nullptr);  // buffered output must not be written twice
    const pid_t pid = fork();
    if (pid != 0) return pid;
    std::vector<char*> argv = EnterFolder(arguments);
    execv(argv[0], argv.data());
    _exit(127);
  }

  // What psring does with these arguments, in a copy of this process, which starts faster than the program.
  Outcome Call(const std::vector<std::string>& arguments) {
    fflush(nullptr);
    const pid_t pid = fork();
    if (pid != 0) return Finish(pid);
    std::vector<char*> argv = EnterFolder(arguments);
    const int code = PsringMain(static_cast<int>(argv.size()) - 1, argv.data());
    fflush(nullptr);
    _exit(code);
  }

  // In a child process. Returns its command line, which ends with a null pointer.
  std::vector<char*> EnterFolder(const std::vector<std::string>& arguments) const {
    signal(SIGINT, SIG_DFL);  // ignored in background jobs of scripts
    if (chdir((root_ / "work").c_str()) != 0) _exit(126);
    setenv("TMPDIR", root_.c_str(), 1);  // temporary files of a killed mpirun are removed with the test
    if (freopen((root_ / "out").c_str(), "w", stdout) == nullptr) _exit(126);
    if (freopen((root_ / "err").c_str(), "w", stderr) == nullptr) _exit(126);
    std::vector<char*> argv = {const_cast<char*>(PSRING_BINARY)};
    for (const auto* part : {&begin_, &arguments}) {
      for (const std::string& argument : *part) argv.push_back(const_cast<char*>(argument.c_str()));
    }
    argv.push_back(nullptr);
    return argv;
  }

  Outcome Finish(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), Slurp(root_ / "out"),
            Slurp(root_ / "err")};
  }

  Outcome Run(const std::vector<std::string>& arguments) { return Finish(Start(arguments)); }

  // The same, which is expected to succeed.
  Outcome Succeed(const std::string& arguments) { return EndWith(0, arguments); }
  Outcome EndWith(int exit_code, const std::string& arguments) {
    Outcome outcome = Run(Words(arguments));
    EXPECT_EQ(outcome.exit_code, exit_code) << arguments << "\n" << outcome.out << outcome.err;
    return outcome;
  }
  // The errors of arguments that are refused.
  std::string Refused(const std::string& arguments) { return EndWith(2, arguments).err; }

  // As Run, with --link: a busy machine may not carry the rate at the moment, so it tries three times.
  Outcome RunOnLinks(const std::vector<std::string>& arguments) {
    Outcome outcome = Run(arguments);
    for (int tries = 1; tries < 3 && CannotCarry(outcome); ++tries) outcome = Run(arguments);
    return outcome;
  }
  Outcome SucceedOnLinks(const std::string& arguments) {
    Outcome outcome = RunOnLinks(Words(arguments));
    EXPECT_EQ(outcome.exit_code, 0) << arguments << "\n" << outcome.out << outcome.err;
    return outcome;
  }
  static bool CannotCarry(const Outcome& outcome) {
    return outcome.exit_code == 2 && absl::StrContains(outcome.err, "this machine cannot carry ");
  }

  struct BadInput {
    std::string arguments, line;  // a part of it
  };
  // Each is refused in one line that begins with `begin`, and nothing is written.
  void ExpectOneLineOfEach(const std::vector<BadInput>& cases, const std::string& begin) {
    for (const auto& [arguments, line] : cases) {
      const Outcome outcome = Call(Words(arguments));
      EXPECT_EQ(outcome.exit_code, 2) << arguments << "\n" << outcome.out << outcome.err;
      EXPECT_THAT(outcome.err, testing::AllOf(OneLineWith(line), testing::StartsWith(begin))) << arguments;
      EXPECT_EQ(outcome.out, "") << arguments;
      EXPECT_TRUE(std::filesystem::is_empty(Path(""))) << arguments;
    }
  }

  std::filesystem::path Path(const std::string& name) const { return root_ / "work" / name; }
  std::string File(const std::string& name) const { return Slurp(Path(name)); }
  // Discarded if it is not JSON.
  nlohmann::json JsonFile(const std::string& name) const {
    return nlohmann::json::parse(File(name), nullptr, /*allow_exceptions=*/false);
  }

  // Starts a training of two workers, which takes long, with records in `Out()`; waits until it trains.
  pid_t StartLongTraining(const std::string& strategy, const std::string& more = "") {
    const pid_t psring = Start(
        Words(absl::StrCat("train --data synthetic --model mlp-small --workers 2 --epochs 1000 --strategy ",
                           strategy, " --out ", Out(), " ", more)));
    AwaitSteps(LongRecords(strategy) / "steps-rank1.jsonl");
    return psring;
  }
  std::string Out() const { return (root_ / "out-folder").string(); }
  std::filesystem::path LongRecords(const std::string& strategy) const {
    return std::filesystem::path(Out()) / "records/training-1" / (strategy + "-2");
  }
  // The outcome of a job that ends soon.
  Outcome FinishSoon(pid_t psring) {
    const MonotonicTime begin = MonotonicNow();
    Outcome outcome = Finish(psring);
    EXPECT_LT(MonotonicNow() - begin, absl::Seconds(20));
    return outcome;
  }

  // Waits until the file of step records `steps` has content.
  static void AwaitSteps(const std::filesystem::path& steps) {
    EXPECT_TRUE(Eventually([&] { return !Slurp(steps).empty(); })) << steps;
  }
  static void ExpectNoProcessWith(const std::string& folder) {
    EXPECT_TRUE(Eventually([&] { return Processes(folder).empty(); }, absl::Seconds(20))) << folder;
  }

  const TestFolder made_;
  const std::filesystem::path root_ = made_.path();

 private:
  const std::vector<std::string> begin_;
};

}  // namespace psring
