// Ends the ranks of a process in order when it is told to stop, or when one of them has failed.
#pragma once

#include <signal.h>

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace psring {

// Waits for SIGTERM, and for SIGINT unless the process ignores it, on a thread of its own; make it before any
// other thread, which then leave these signals to it. On the first one it aborts what OnStop has named, so
// that the ranks' threads come back with an error, and ends the process itself where that has not happened a
// moment later. Where OnStop has asked for patience, the ranks may come back by themselves first: signal()
// tells them.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();

  // `abort` is called at once where the signal, or another rank's failure, has come before. It must be safe
  // from another thread, until OnStop(rank, nullptr). `patience`: asked when the signal comes, how long
  // `abort` is to wait; of several ranks the longest counts for all.
  void OnStop(
      int rank, std::function<void(absl::Status)> abort,
      std::function<absl::Duration()> patience = [] { return absl::ZeroDuration(); });

  // `rank` has failed, the first of all: the others end, too, because of `why`. Nothing happens where the
  // signal has come, which ends them in its own time.
  void AbortOthers(int rank, const absl::Status& why);

  // 0: none has come.
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
