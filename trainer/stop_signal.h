// Ends a rank in order when it is told to stop.
#pragma once

#include <signal.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace psring {

// Waits for SIGTERM and SIGINT on a thread of its own; make it before any other thread, which then leave the
// two signals to it. On the first one it aborts what OnStop has named, so that the main thread comes back
// with an error, and ends the process itself where that has not happened a moment later. Where OnStop has
// asked for patience, the main thread may come back by itself first: signal() tells it.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();

  // `abort` is called at once where the signal has come before. It must be safe from another thread, until
  // OnStop(nullptr). `patience`: asked when the signal comes, how long `abort` is to wait.
  void OnStop(
      std::function<void(absl::Status)> abort,
      std::function<absl::Duration()> patience = [] { return absl::ZeroDuration(); });

  // 0: none has come.
  int signal() const { return signal_; }

 private:
  void Watch();

  sigset_t signals_;
  std::atomic<int> signal_{0};
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  CondVar changed_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void(absl::Status)> abort_ ABSL_GUARDED_BY(mutex_);
  std::function<absl::Duration()> patience_ ABSL_GUARDED_BY(mutex_);
  std::thread watcher_;
};

}  // namespace psring
