// Which workers are in the job: who has joined, left or is lost, who is disconnected and for how long, and
// who waits at a barrier. Pure: no locks, no clock; the caller passes the time in nanoseconds.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ps_server/protocol/server_job.h"

namespace psring {

// "worker 1" or "workers 1, 2".
std::string WorkersText(const std::vector<int>& workers);
// " (rank 3)" or " (ranks 3, 7)", if `ranks`, by worker, is not empty.
std::string RanksBeside(const std::vector<int>& workers, const std::vector<int>& ranks);
// An error with "worker 1, bucket 2: " before its message; OK stays OK.
absl::Status AtBucket(const absl::Status& status, int worker, int bucket);

class Membership {
 public:
  static constexpr int kBarriers = 3;
  enum class Presence { kAbsent, kJoined, kLeft, kLost };
  struct Member {
    Presence presence = Presence::kAbsent;
    uint64_t session = 0;
    bool again = false;
    int64_t epoch = 0;
    int64_t gone_ns = 0;      // when its stream broke; 0: it is not broken
    int64_t patience_ns = 0;  // how long it may stay broken
    std::string why;          // the reason for the broken stream
    int barrier = -1;         // at which it waits; -1: none
  };

  explicit Membership(int workers) : members_(static_cast<size_t>(workers)) {}
  const Member& of(int worker) const { return members_[static_cast<size_t>(worker)]; }
  Presence presence(int worker) const { return of(worker).presence; }

  // What a Join means. kAnsweredAgain: the worker has left, and the answer to its Leave was lost.
  enum class Entry { kFirst, kResumes, kReturns, kAnsweredAgain };
  // Cancelled: the worker is about to be lost; it may try again. AlreadyExists: the number is in use.
  absl::StatusOr<Entry> EntryOf(const Joining& joining, bool started) const;
  void Join(const Joining& joining);
  void Resume(int worker) { at(worker).gone_ns = 0; }
  void Leave(int worker) { at(worker).presence = Presence::kLeft; }
  // The stream is broken. False: the worker is not in the job.
  bool Disconnect(int worker, int64_t now_ns, int64_t patience_ns, const std::string& why);
  // Like Disconnect, but the worker may not resume.
  bool Expel(int worker, int64_t now_ns, const std::string& why);
  // A restarted server: the worker has `patience_ns` to find it. `lost`: it was lost before.
  void AwaitReturn(int worker, bool lost, int64_t now_ns, int64_t patience_ns);
  // Whether the worker's stream is broken and it is still in the job, so that it may be lost.
  bool IsGone(int worker) const;
  void Lose(int worker);

  // The workers that others may wait for: joined, or absent and expected.
  bool Expected(int worker) const {
    return presence(worker) == Presence::kJoined || presence(worker) == Presence::kAbsent;
  }
  // Joined workers, and whether they joined again.
  std::vector<std::pair<int, bool>> Present() const;
  std::vector<int> Absent() const { return Those(Presence::kAbsent); }
  // Workers that were gone for too long, with the reason.
  std::vector<std::pair<int, std::string>> Overdue(int64_t now_ns) const;
  // Whether a worker remains that is not lost.
  bool OthersRemain(int worker) const;
  int64_t NewestEpoch() const;
  std::vector<int> Lost() const { return Those(Presence::kLost); }
  // Expected and left workers.
  std::pair<int, int> CountExpectedAndLeft() const;

  // Barriers. 0 and 1 stay open once passed.
  void ReachBarrier(int worker, int number) { at(worker).barrier = number; }
  // The worker waits no more at its barrier, which is returned; -1: it waits at none.
  int LeaveBarrier(int worker) { return std::exchange(at(worker).barrier, -1); }
  void PassBarriers(int end);  // those below `end`
  struct Released {
    std::vector<std::pair<int, int>> workers;  // worker, barrier
    bool last = false;                         // all have reached the last barrier, for the first time
  };
  Released ReleaseBarriers();
  // The workers that those at a barrier wait for; nobody if none waits.
  std::vector<int> MissingAtBarrier() const;

 private:
  std::vector<int> Those(Presence presence) const;
  Member& at(int worker) { return members_[static_cast<size_t>(worker)]; }
  std::vector<Member> members_;
  bool passed_[kBarriers] = {};
};

}  // namespace psring
