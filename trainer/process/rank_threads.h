// The ranks that one process carries, a thread each: how they run side by side, and how they end together.
#pragma once

#include <deque>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
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
    // Makes whatever the others wait for return `why`; called once, with the first failure. From any thread.
    std::function<void(int rank, const absl::Status& why)> abort_others = [](int, const absl::Status&) {};
    // Somebody else ends the ranks, in his own time: nobody is given up here.
    std::function<bool()> told_to_end = [] { return false; };
    absl::Duration patience = absl::Seconds(5);  // with the others, from the first failure on
    // They have not come back in time. It ends the process: their threads still run.
    std::function<void(const RankFailure&)> give_up;
  };

  explicit RankThreads(Options options) : options_(std::move(options)) {}

  // Runs `body(rank)` for each, on a thread each where there are several, and returns when all have returned:
  // the first failure, if there was one. One call.
  std::optional<RankFailure> Run(const std::function<absl::Status(int rank)>& body);

  // From a rank's thread, before it lets go of what others wait for, which would make them fail as well. What
  // its body returns comes too late to be told from a consequence.
  void Failed(int rank, const absl::Status& status);

  // From a rank's thread: has the thread that called Run do `work`, which the death of a rank's thread must
  // not undo, and waits for it.
  absl::Status OnMainThread(const std::function<absl::Status()>& work);

 private:
  struct Asked {
    const std::function<absl::Status()>* work;
    std::optional<absl::Status> done;
  };

  std::optional<RankFailure> Attend();

  const Options options_;
  Mutex mutex_;
  CondVar changed_;
  int returned_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Asked*> asked_ ABSL_GUARDED_BY(mutex_);
  std::optional<RankFailure> first_ ABSL_GUARDED_BY(mutex_);
  absl::Time give_up_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

}  // namespace psring
