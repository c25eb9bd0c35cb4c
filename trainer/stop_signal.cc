#include "trainer/stop_signal.h"

#include <pthread.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace psring {
namespace {

constexpr absl::Duration kGrace = absl::Seconds(2);

absl::Status StoppedBy(int signal) {
  return absl::CancelledError(absl::StrCat("stopped by ", signal == SIGINT ? "SIGINT" : "SIGTERM"));
}

}  // namespace

StopSignal::StopSignal() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  watcher_ = std::thread([this] { Watch(); });
}

StopSignal::~StopSignal() {
  {
    MutexLock lock(mutex_);
    over_ = true;
    changed_.NotifyAll();
  }
  stopping_ = true;
  pthread_kill(watcher_.native_handle(), SIGTERM);  // only to wake it
  watcher_.join();
}

void StopSignal::OnStop(std::function<void(absl::Status)> abort, std::function<absl::Duration()> patience) {
  MutexLock lock(mutex_);
  abort_ = std::move(abort);
  patience_ = std::move(patience);
  changed_.NotifyAll();
  if (signal_ != 0 && abort_ != nullptr) abort_(StoppedBy(signal_));
}

void StopSignal::Watch() {
  int signal = 0;
  if (sigwait(&signals_, &signal) != 0 || stopping_) return;
  MutexLock lock(mutex_);
  signal_ = signal;
  const absl::Time until = absl::Now() + (abort_ != nullptr ? patience_() : absl::ZeroDuration());
  while (!over_ && abort_ != nullptr && absl::Now() < until) changed_.WaitUntil(mutex_, until);
  const absl::Time deadline =
      absl::Now() + (abort_ != nullptr || until > absl::Now() ? kGrace : absl::ZeroDuration());
  if (abort_ != nullptr) abort_(StoppedBy(signal));
  while (!over_) {
    if (!changed_.WaitUntil(mutex_, deadline) && !over_) _exit(128 + signal);
  }
}

}  // namespace psring
