// Which workers are connected to a RoundLimitServer, and how their threads wait for each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "ps_server/bench/round_limits.h"

namespace psring {

// A worker's request. A round has several stages, from 0; in each, all workers make the same request.
struct RoundCall {
  RoundLimit kind = RoundLimit::kRaw;
  size_t count = 0;  // elements of the gradient
  int stage = 0;
  bool operator==(const RoundCall&) const = default;
};

// A worker has at most one thread between Join and Leave. So when all workers have met in stage 0, no thread
// is still in an earlier round. Thread-safe.
class RoundMeeting {
 public:
  RoundMeeting(int workers, absl::Duration timeout)
      : timeout_(timeout), connected_(workers), waiting_(workers) {}

  // InvalidArgument: no such worker. AlreadyExists: it has joined.
  absl::Status Join(int worker);
  // If others are in a round, it fails for them.
  void Leave(int worker);

  // For a worker that has joined: waits until all workers have called it, and returns the result of `last`,
  // which the last worker's thread runs before any call returns. InvalidArgument: the others wait with
  // another request, and continue to wait. DeadlineExceeded: a worker is missing after the timeout.
  // Unavailable: a worker has left the round, or this worker's connection has ended (`has_gone`, called on
  // any thread).
  absl::Status Wait(int worker, const RoundCall& call, const std::function<bool()>& has_gone,
                    const std::function<absl::Status()>& last);

  // Current and later waits return Cancelled.
  void End();

 private:
  void StopWaitingLocked(int worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndMeetingLocked(const absl::Status& outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const absl::Duration timeout_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<bool> connected_ ABSL_GUARDED_BY(mutex_);                 // by worker
  std::vector<std::function<bool()>> waiting_ ABSL_GUARDED_BY(mutex_);  // by worker: its has_gone, or null
  size_t here_ ABSL_GUARDED_BY(mutex_) = 0;                             // workers that wait
  RoundCall call_ ABSL_GUARDED_BY(mutex_);                              // their request
  int64_t meetings_ ABSL_GUARDED_BY(mutex_) = 0;                        // completed
  absl::Status outcome_ ABSL_GUARDED_BY(mutex_);                        // of the last one
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;                         // a worker has left since stage 0
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace psring
