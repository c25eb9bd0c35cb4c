// Runs the ranks of one process, one thread each, and ends them together.
#pragma once

#include <deque>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"

namespace psring {

struct RankFailure {
  int rank = 0;
  absl::Status status;
};

class RankThreads {
 public:
  struct Options {
    int first_rank = 0;
    int count = 1;
    // Makes the other ranks' waits return `why`. Called once, for the first failure, from any thread.
    std::function<void(int rank, const absl::Status& why)> abort_others = [](int, const absl::Status&) {};
    // Whether a signal is stopping the ranks; give_up is then not called.
    std::function<bool()> is_stopping = [] { return false; };
    absl::Duration patience = absl::Seconds(5);  // for the others to return after the first failure
    // Called if they have not returned by then. Must exit the process, because their threads still run.
    std::function<void(const RankFailure&)> give_up;
  };

  explicit RankThreads(Options options) : options_(std::move(options)) {}

  // Runs `body(rank)` for each rank, on separate threads if there are several. Returns the first failure, if
  // any, after all have returned. Call it once.
  std::optional<RankFailure> Run(const std::function<absl::Status(int rank)>& body);

  // From a rank's thread, before it closes connections. Closing them makes other ranks fail, which might
  // otherwise be reported as the first failure.
  void Failed(int rank, const absl::Status& status);

  // From a rank's thread: runs `work` on the thread that called Run, for effects that must outlive the rank's
  // thread, and waits for it.
  absl::Status OnMainThread(const std::function<absl::Status()>& work);

 private:
  struct Asked {
    const std::function<absl::Status()>* work;
    std::optional<absl::Status> done;
  };

  std::optional<RankFailure> WaitForRanks();

  const Options options_;
  Mutex mutex_;
  CondVar changed_;
  int returned_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Asked*> asked_ ABSL_GUARDED_BY(mutex_);
  std::optional<RankFailure> first_ ABSL_GUARDED_BY(mutex_);
  MonotonicTime give_up_at_ ABSL_GUARDED_BY(mutex_) = MonotonicTime::InfiniteFuture();
};

}  // namespace psring
