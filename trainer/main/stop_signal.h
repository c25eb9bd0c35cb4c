// Stops the ranks of a process after SIGTERM or SIGINT, or after one of them has failed.
#pragma once

#include <signal.h>

#include <atomic>
#include <functional>
#include <map>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace psring {

// Waits for SIGTERM, and for SIGINT unless the process ignores it, on its own thread. Create it before any
// other thread, so that the others have these signals blocked. On the first signal it calls the aborts of
// OnStop, so that the ranks' threads return with an error, and exits the process if they do not do so within
// 2 s. If OnStop requested patience, it first waits for ranks that return by themselves after signal().
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();

  // `abort` is called immediately if a signal or another rank's failure came earlier. It is called from
  // another thread, at any time until OnStop(rank, nullptr). `patience`: called when the signal arrives, how
  // long to wait before `abort`; the longest of all ranks applies.
  void OnStop(
      int rank, std::function<void(absl::Status)> abort,
      std::function<absl::Duration()> patience = [] { return absl::ZeroDuration(); });

  // `rank` was the first to fail: aborts the others with `why`. Does nothing after a signal, which stops them
  // anyway.
  void AbortOthers(int rank, const absl::Status& why);

  // 0: none yet.
  int signal() const { return signal_; }

 private:
  struct OfRank {
    std::function<void(absl::Status)> abort;
    std::function<absl::Duration()> patience;
  };

  void Watch();

  sigset_t signals_;
  std::atomic<int> signal_{0};
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  CondVar changed_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<int, OfRank> ranks_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // of a rank
  std::thread watcher_;
};

}  // namespace psring
