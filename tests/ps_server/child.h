// A child process, and the real ps_server as one.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/rendezvous/rendezvous.h"
#include "tests/test_secret.h"

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

inline std::unique_ptr<RendezvousServer> NewStore() {
  return *RendezvousServer::Start("127.0.0.1", 0, TestSecret());
}
inline std::unique_ptr<Rendezvous> MeetIn(const RendezvousServer& store) {
  RendezvousOptions options{
      .host = "127.0.0.1", .port = store.port(), .hosted_elsewhere = true, .secret = TestSecret()};
  options.timeout = absl::Seconds(20);
  auto rendezvous = Rendezvous::Connect(options);
  PSRING_CHECK(rendezvous.ok());
  return *std::move(rendezvous);
}
// The address that a server has published.
inline std::string AddressIn(const RendezvousServer& store, int server = 0) {
  const auto address = MeetIn(store)->Get(absl::StrCat("ps/", server), "the parameter server");
  PSRING_CHECK(address.ok());
  return *address;
}
// One of the servers of a job. PS_SERVER_BINARY: the program.
inline std::vector<std::string> ServerCommand(const char* program, const RendezvousServer& store, int workers,
                                              const std::vector<std::string>& more, int server = 0,
                                              int servers = 1) {
  std::vector<std::string> command = {program,
                                      "--rendezvous",
                                      absl::StrCat("tcp://127.0.0.1:", store.port()),
                                      "--workers",
                                      absl::StrCat(workers),
                                      "--server",
                                      absl::StrCat(server),
                                      "--servers",
                                      absl::StrCat(servers)};
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

}  // namespace psring
