#include "experiments/launch/interrupt.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "common/base/check.h"
#include "common/base/own_process.h"
#include "common/text/translate.h"

namespace psring {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

// Used by the signal handler.
std::atomic<int> g_pipe{-1};
std::atomic<int> g_signal{0};

void OnSignal(int signal) {
  const int saved_errno = errno;
  int none = 0;
  g_signal.compare_exchange_strong(none, signal);
  const char byte = 0;
  if (write(g_pipe, &byte, 1) < 0) {
    // The pipe is full, so it is readable already.
  }
  errno = saved_errno;
}

}  // namespace

Interrupt::Interrupt() {
  PSRING_CHECK(g_pipe == -1);
  int fds[2];
  PSRING_CHECK(pipe2(fds, O_CLOEXEC | O_NONBLOCK) == 0);
  read_fd_ = fds[0];
  write_fd_ = fds[1];
  g_signal = 0;
  g_pipe = write_fd_;
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  for (int signal : kSignals) sigaddset(&action.sa_mask, signal);
  for (int signal : kSignals) {
    if (signal == SIGTERM || !IgnoresSignal(signal)) sigaction(signal, &action, nullptr);
  }
}

Interrupt::~Interrupt() {
  for (int signal : kSignals) {
    if (!IgnoresSignal(signal)) ::signal(signal, SIG_DFL);
  }
  g_pipe = -1;
  close(read_fd_);
  close(write_fd_);
}

int Interrupt::signal() const { return g_signal; }

absl::Status Interrupt::Check() const {
  const int signal = this->signal();
  if (signal == 0) return absl::OkStatus();
  return absl::CancelledError(Tr("interrupted (SIG$0)", sigabbrev_np(signal)));
}

}  // namespace psring
