#include "trainer/main/own_servers.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/own_process.h"

namespace psring {
namespace {

constexpr absl::Duration kServerGrace = absl::Seconds(2), kPoll = absl::Milliseconds(5);

absl::StatusOr<std::vector<std::string>> CommandOf(const std::vector<std::string>& arguments) {
  PSRING_ASSIGN_OR_RETURN(const std::string program, FindProgram("ps_server"));
  std::vector<std::string> command = {program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace

absl::StatusOr<std::unique_ptr<OwnServers>> OwnServers::Start(
    const std::vector<std::vector<std::string>>& arguments, absl::Duration timeout) {
  std::unique_ptr<OwnServers> servers(new OwnServers());
  for (const auto& one : arguments) {
    PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> command, CommandOf(one));
    PSRING_ASSIGN_OR_RETURN(
        const ChildProcess process,
        StartProcess(command, {}, getpgrp(), /*network=*/{}, /*inherits=*/{}, /*shares_stderr=*/true));
    servers->servers_.push_back({process, LineReader(process.out_fd)});
  }
  const MonotonicTime deadline = MonotonicNow() + timeout;
  for (Server& server : servers->servers_) {
    PSRING_RETURN_IF_ERROR(WaitUntilServing(server, deadline, timeout));
  }
  return servers;
}

absl::Status OwnServers::WaitUntilServing(Server& server, MonotonicTime deadline, absl::Duration timeout) {
  for (bool serves = false;; absl::SleepFor(kPoll)) {
    server.output.Read([&](const std::string& line) { serves |= absl::StrContains(line, "serving"); });
    if (serves) return absl::OkStatus();
    if (server.process.TryWait()) {
      return Unavailable("the parameter server that this rank started ", server.process.HowItEnded(),
                         " before it served");
    }
    if (MonotonicNow() >= deadline) {
      return DeadlineExceeded("waited ", absl::FormatDuration(timeout),
                              " for the parameter server that this rank started (process ",
                              server.process.pid, ") to serve");
    }
  }
}

// True: all have ended.
bool OwnServers::ReapUntil(MonotonicTime deadline, absl::Status& first_failure) {
  while (true) {
    bool running = false;
    for (auto& [process, output] : servers_) {
      if (process.TryWait() && !process.Succeeded() && first_failure.ok()) {
        first_failure = absl::AbortedError(
            absl::StrCat("the parameter server that this rank started ", process.HowItEnded()));
      }
      running |= process.running;
    }
    if (!running) return true;
    if (MonotonicNow() >= deadline) return false;
    absl::SleepFor(kPoll);
  }
}

absl::Status OwnServers::WaitUntilDone(absl::Duration timeout) {
  absl::Status failure;
  if (ReapUntil(MonotonicNow() + timeout, failure)) return failure;
  return DeadlineExceeded("waited ", absl::FormatDuration(timeout),
                          " for the parameter server that this rank started to exit");
}

OwnServers::~OwnServers() {
  absl::Status failure;
  for (const int signal : {SIGTERM, SIGKILL}) {
    for (const Server& server : servers_) {
      if (server.process.running) kill(server.process.pid, signal);
    }
    if (ReapUntil(MonotonicNow() + kServerGrace, failure)) break;
  }
  for (Server& server : servers_) server.output.Close();
}

absl::Status BecomeServer(const std::vector<std::string>& arguments) {
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> command, CommandOf(arguments));
  const std::vector<char*> argv = Pointers(command);
  // StopSignal has blocked signals in this process; a server handles them itself.
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execv(argv[0], argv.data());
  return Internal("cannot become ", command[0], ": ", strerror(errno));
}

}  // namespace psring
