// A child process.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/deadline.h"

namespace psring {

// A child process whose output (both streams) goes to a file. Killed with its owner.
class Child {
 public:
  explicit Child(std::vector<std::string> command) {
    output_ = absl::StrCat(::testing::TempDir(), "/ps-child-", getpid(), "-", next_++);
    std::vector<char*> arguments;
    for (std::string& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_ = vfork();
    if (pid_ == 0) {
      const int file = open(output_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
      dup2(file, 1);
      dup2(file, 2);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
  }
  ~Child() {
    if (!ended_) Kill(SIGKILL), Wait();
    unlink(output_.c_str());
  }
  void Kill(int signal) const { kill(pid_, signal); }
  pid_t pid() const { return pid_; }
  // The exit code, or minus the signal that ended it. Nothing: it still runs after `most`.
  std::optional<int> Wait(absl::Duration most = absl::Seconds(10)) {
    int status = 0;
    for (const MonotonicTime deadline = MonotonicNow() + most; MonotonicNow() < deadline;) {
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        ended_ = true;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
    return std::nullopt;
  }
  std::string Output() const {
    std::ifstream file(output_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  inline static int next_ = 0;
  std::string output_;
  pid_t pid_ = -1;
  bool ended_ = false;
};

}  // namespace psring
