#include "trainer/main/stop_signal.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/base/own_process.h"

namespace psring {
namespace {

constexpr absl::Duration kGrace = absl::Seconds(2);

absl::Status StoppedBy(int signal) {
  return Cancelled("stopped by ", signal == SIGINT ? "SIGINT" : "SIGTERM");
}

}  // namespace

StopSignal::StopSignal() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  if (!IgnoresSignal(SIGINT)) sigaddset(&signals_, SIGINT);
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

void StopSignal::OnStop(int rank, std::function<void(absl::Status)> abort,
                        std::function<absl::Duration()> patience) {
  MutexLock lock(mutex_);
  if (abort == nullptr) {
    ranks_.erase(rank);
  } else {
    if (signal_ != 0 || !failure_.ok()) abort(signal_ != 0 ? StoppedBy(signal_) : failure_);
    ranks_[rank] = {std::move(abort), std::move(patience)};
  }
  changed_.NotifyAll();
}

void StopSignal::AbortOthers(int rank, const absl::Status& why) {
  MutexLock lock(mutex_);
  if (signal_ != 0) return;
  failure_ = why;
  for (const auto& [other, of_rank] : ranks_) {
    if (other != rank) of_rank.abort(why);
  }
}

void StopSignal::Watch() {
  int signal = 0;
  if (sigwait(&signals_, &signal) != 0 || stopping_) return;
  MutexLock lock(mutex_);
  signal_ = signal;
  absl::Duration patience = absl::ZeroDuration();
  for (const auto& [rank, of_rank] : ranks_) patience = std::max(patience, of_rank.patience());
  const MonotonicTime until = MonotonicNow() + patience;
  while (!over_ && !ranks_.empty() && MonotonicNow() < until) changed_.WaitUntil(mutex_, until);
  const MonotonicTime deadline =
      MonotonicNow() + (!ranks_.empty() || until > MonotonicNow() ? kGrace : absl::ZeroDuration());
  for (const auto& [rank, of_rank] : ranks_) of_rank.abort(StoppedBy(signal));
  while (!over_) {
    if (!changed_.WaitUntil(mutex_, deadline) && !over_) _exit(128 + signal);
  }
}

}  // namespace psring
