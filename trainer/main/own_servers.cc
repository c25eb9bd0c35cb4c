#include "trainer/main/own_servers.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/base/own_process.h"
#include "common/device/task_limit.h"

namespace psring {
namespace {

constexpr absl::Duration kServerGrace = absl::Seconds(2);

std::vector<char*> Pointers(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<char*> pointers = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Unblocks the signals that StopSignal has blocked in this process; a server handles them itself.
void TakeAllSignals() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

std::string HowItEnded(int status) {
  if (WIFSIGNALED(status)) return absl::StrCat("was killed by SIG", sigabbrev_np(WTERMSIG(status)));
  return absl::StrCat("exited with code ", WEXITSTATUS(status));
}

}  // namespace

absl::StatusOr<std::unique_ptr<OwnServers>> OwnServers::Start(
    const std::vector<std::vector<std::string>>& arguments, absl::Duration timeout) {
  std::unique_ptr<OwnServers> servers(new OwnServers());
  PSRING_ASSIGN_OR_RETURN(const std::string program, FindProgram("ps_server"));
  for (const auto& one : arguments) PSRING_RETURN_IF_ERROR(servers->StartOne(program, one));
  const MonotonicTime deadline = MonotonicNow() + timeout;
  for (Server& server : servers->servers_) {
    PSRING_RETURN_IF_ERROR(WaitUntilServing(server, deadline, timeout));
  }
  return servers;
}

absl::Status OwnServers::StartOne(const std::string& program, const std::vector<std::string>& arguments) {
  const std::vector<char*> argv = Pointers(program, arguments);
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) return Internal("pipe: ", strerror(errno));
  const pid_t parent = getpid();
  // _Fork does not run gRPC's fork handlers. Only async-signal-safe calls follow until exec.
  const pid_t pid = _Fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    dup2(out[1], STDOUT_FILENO);
    TakeAllSignals();
    execv(argv[0], argv.data());
    _exit(127);
  }
  const int error = errno;
  close(out[1]);
  if (pid < 0) {
    close(out[0]);
    return Internal("fork: ", strerror(error), TaskLimitText(error));
  }
  servers_.push_back({pid, out[0]});
  return absl::OkStatus();
}

absl::Status OwnServers::WaitUntilServing(Server& server, MonotonicTime deadline, absl::Duration timeout) {
  std::string said;
  while (!absl::StrContains(said, "serving")) {
    pollfd waiting = {server.out_fd, POLLIN, 0};
    const int64_t left_ms = absl::ToInt64Milliseconds(deadline - MonotonicNow());
    if (left_ms <= 0) {
      return DeadlineExceeded("waited ", absl::FormatDuration(timeout),
                              " for the parameter server that this rank started (process ", server.pid,
                              ") to serve");
    }
    if (poll(&waiting, 1, static_cast<int>(std::min<int64_t>(left_ms, 1000))) <= 0) continue;
    char bytes[512];
    const ssize_t n = read(server.out_fd, bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n > 0) {
      said.append(bytes, static_cast<size_t>(n));
      continue;
    }
    int status = 0;
    waitpid(server.pid, &status, 0);
    server.pid = -1;
    return Unavailable("the parameter server that this rank started ", HowItEnded(status),
                       " before it served");
  }
  return absl::OkStatus();
}

// True: all have exited.
bool OwnServers::ReapUntil(MonotonicTime deadline, absl::Status& first_failure) {
  while (true) {
    for (Server& server : servers_) {
      int status = 0;
      if (server.pid < 0 || waitpid(server.pid, &status, WNOHANG) != server.pid) continue;
      server.pid = -1;
      if (first_failure.ok() && !(WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
        first_failure = absl::AbortedError(
            absl::StrCat("the parameter server that this rank started ", HowItEnded(status)));
      }
    }
    bool running = false;
    for (const Server& server : servers_) running = running || server.pid >= 0;
    if (!running) return true;
    if (MonotonicNow() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
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
      if (server.pid >= 0) kill(server.pid, signal);
    }
    if (ReapUntil(MonotonicNow() + kServerGrace, failure)) break;
  }
  for (const Server& server : servers_) close(server.out_fd);
}

absl::Status BecomeServer(const std::vector<std::string>& arguments) {
  PSRING_ASSIGN_OR_RETURN(const std::string program, FindProgram("ps_server"));
  const std::vector<char*> argv = Pointers(program, arguments);
  TakeAllSignals();
  execv(argv[0], argv.data());
  return Internal("cannot become ", program, ": ", strerror(errno));
}

}  // namespace psring
