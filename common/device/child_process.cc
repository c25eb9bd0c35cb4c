#include "common/device/child_process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/device/task_limit.h"

extern char** environ;

namespace psring {
namespace {

// Longer lines are reported in pieces.
constexpr size_t kLongestLine = 1 << 20;

std::vector<std::string> MergedEnvironment(const std::vector<std::string>& extra) {
  std::vector<std::string> merged = extra;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string key = text.substr(0, text.find('=') + 1);
    bool replaced = false;
    for (const std::string& ours : extra) replaced = replaced || ours.compare(0, key.size(), key) == 0;
    if (!replaced) merged.push_back(text);
  }
  return merged;
}

// Runs in the child between fork and exec: only async-signal-safe calls. Writes errno to `error_fd`, which a
// successful exec closes.
[[noreturn]] void BecomeChild(char* const* argv, char* const* envp, pid_t group, pid_t parent, int out_fd,
                              int err_fd, int error_fd, const ChildNetwork& network,
                              const std::vector<int>& inherits) {
  const auto fail = [error_fd](int error) {
    if (write(error_fd, &error, sizeof(error)) < 0) _exit(126);
    _exit(127);
  };
  if (!EnterNetwork(network)) fail(errno);
  for (int fd : inherits) fcntl(fd, F_SETFD, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);     // after setns, which may clear it (prctl(2))
  if (getppid() != parent) _exit(127);  // the parent died before the line above
  setpgid(0, group);
  const int null_fd = open("/dev/null", O_RDONLY);
  dup2(null_fd, STDIN_FILENO);
  dup2(out_fd, STDOUT_FILENO);
  if (err_fd >= 0) dup2(err_fd, STDERR_FILENO);
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  sigaction(SIGPIPE, &by_default, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(argv[0], argv, envp);
  fail(errno);
  _exit(127);
}

void CloseAll(std::initializer_list<int> fds) {
  for (int fd : fds) {
    if (fd >= 0) close(fd);
  }
}

}  // namespace

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

bool EnterNetwork(const ChildNetwork& network) {
  if (network.net_fd < 0) return true;
  if (network.user_fd >= 0 && setns(network.user_fd, CLONE_NEWUSER) != 0) return false;
  return setns(network.net_fd, CLONE_NEWNET) == 0;
}

absl::StatusOr<ChildProcess> StartProcess(const std::vector<std::string>& command,
                                          const std::vector<std::string>& environment, pid_t group,
                                          const ChildNetwork& network, const std::vector<int>& inherits,
                                          bool shares_stderr) {
  const std::vector<std::string> merged = MergedEnvironment(environment);
  const std::vector<char*> argv = Pointers(command);
  const std::vector<char*> envp = Pointers(merged);
  int out[2] = {-1, -1}, err[2] = {-1, -1}, exec_error[2] = {-1, -1};
  const auto fail = [&](const char* call) {
    const int error = errno;
    const std::string why = absl::StrCat(call, ": ", strerror(error), TaskLimitText(error));
    CloseAll({out[0], out[1], err[0], err[1], exec_error[0], exec_error[1]});
    return absl::InternalError(why);
  };
  if (pipe2(out, O_CLOEXEC) != 0 || (!shares_stderr && pipe2(err, O_CLOEXEC) != 0) ||
      pipe2(exec_error, O_CLOEXEC) != 0) {
    return fail("pipe");
  }
  const pid_t parent = getpid();
  // fork would run gRPC's fork handlers, which complain about its threads. The child does not need them.
  const pid_t pid = _Fork();
  if (pid < 0) return fail("fork");
  if (pid == 0)
    BecomeChild(argv.data(), envp.data(), group, parent, out[1], err[1], exec_error[1], network, inherits);
  setpgid(pid, group == 0 ? pid : group);  // in both processes, because either may run first
  CloseAll({out[1], err[1], exec_error[1]});
  out[1] = err[1] = exec_error[1] = -1;

  int error = 0;
  ssize_t got;
  do {
    got = read(exec_error[0], &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  if (got > 0) {
    waitpid(pid, nullptr, 0);
    CloseAll({out[0], err[0], exec_error[0]});
    return absl::NotFoundError(absl::StrCat(command.front(), ": ", strerror(error)));
  }
  CloseAll({exec_error[0]});
  fcntl(out[0], F_SETFL, O_NONBLOCK);
  fcntl(err[0], F_SETFL, O_NONBLOCK);
  return ChildProcess{.pid = pid,
                      .pid_fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0)),
                      .out_fd = out[0],
                      .err_fd = err[0],
                      .running = true};
}

bool ChildProcess::TryWait() {
  if (!running || waitpid(pid, &wait_status, WNOHANG) != pid) return false;
  running = false;
  CloseAll({pid_fd});
  pid_fd = -1;
  return true;
}

bool ChildProcess::Succeeded() const { return WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0; }

bool ChildProcess::EndedWith(int exit_code) const {
  return WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == exit_code;
}

bool ChildProcess::Signalled() const { return WIFSIGNALED(wait_status); }

std::string ChildProcess::HowItEnded() const {
  if (running) return "is running";
  if (Signalled()) {
    const int signal = WTERMSIG(wait_status);
    return absl::StrCat("was killed by SIG", sigabbrev_np(signal), " (", strsignal(signal), ")");
  }
  return absl::StrCat("ended with exit code ", WEXITSTATUS(wait_status));
}

void LineReader::Read(const std::function<void(const std::string&)>& on_line) {
  char buffer[16384];
  while (fd_ >= 0) {
    const ssize_t got = read(fd_, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return;  // EAGAIN
    if (got == 0) {
      if (!rest_.empty()) on_line(rest_);
      Close();
      return;
    }
    rest_.append(buffer, static_cast<size_t>(got));
    size_t begin = 0;
    for (size_t end; (end = rest_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      on_line(rest_.substr(begin, end - begin));
    }
    rest_.erase(0, begin);
    if (rest_.size() > kLongestLine) on_line(std::exchange(rest_, ""));
  }
}

void LineReader::Close() {
  CloseAll({fd_});
  fd_ = -1;
  rest_.clear();
}

}  // namespace psring
