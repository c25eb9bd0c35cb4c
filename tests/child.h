// A program as a child process of a test.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "common/device/child_process.h"
#include "common/io/files.h"
#include "tests/eventually.h"
#include "tests/test_folder.h"
#include "tests/test_secret.h"

namespace psring {

// Killed with its owner; its output is in files.
class Child {
 public:
  // `environment`: all of it but the job secret; none: this process's.
  explicit Child(const std::vector<std::string>& command,
                 std::optional<std::vector<std::string>> environment = std::nullopt) {
    const std::vector<char*> argv = Pointers(command);
    std::vector<char*> variables;
    if (environment.has_value()) {
      environment->push_back(SecretEnvironment(TestSecret()));
      variables = Pointers(*environment);
    }
    char* const* const envp = environment.has_value() ? variables.data() : environ;
    const auto create = [](const std::string& path) { return open(path.c_str(), O_WRONLY | O_CREAT, 0600); };
    pid_ = _Fork();  // without gRPC's handlers
    if (pid_ == 0) {
      dup2(create(output_), STDOUT_FILENO);
      dup2(create(errors_), STDERR_FILENO);
      execve(argv[0], argv.data(), envp);
      _exit(127);
    }
  }
  ~Child() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  // The exit code; 128 + the signal's number; -1 if it still runs after a minute.
  int Wait() {
    int status = 0;
    if (!Eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; })) return -1;
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  void Signal(int signal) const { kill(pid_, signal); }
  pid_t pid() const { return pid_; }
  std::string output() const { return ReadFile(output_).value_or(""); }
  std::string errors() const { return ReadFile(errors_).value_or(""); }
  std::string both() const { return output() + errors(); }

 private:
  const TestFolder folder_;
  const std::string output_ = folder_ / "output", errors_ = folder_ / "errors";
  pid_t pid_ = 0;
};

}  // namespace psring
