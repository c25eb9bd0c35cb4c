// What the rendezvous service knows and decides: who takes part, which values are there, which exchange waits
// for whom. No network, so that it is tested with threads alone; rendezvous.cc puts gRPC around it.
//
// A *member* is a process that has joined: a rank, or one without a rank. It *leaves* when it says so and is
// *lost* when it ends otherwise. A wait fails as soon as it is known that it cannot succeed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace psring {

// "60 s", "0.2 s".
std::string SecondsText(absl::Duration duration);
// "rank 2", "ranks 2 and 3", "ranks 0, 1, 2 and 3".
std::string RanksText(const std::vector<int>& ranks);

// Thread-safe.
class RendezvousStore {
 public:
  struct Process {
    int rank = -1;  // -1: no rank
    int world_size = 1;
    std::string name;  // "host:pid"
  };

  // The member's number. AlreadyExists: the rank is taken, or was; InvalidArgument: no such rank, or another
  // world size than that of the ranks before.
  absl::StatusOr<int64_t> Join(const Process& process);
  void Leave(int64_t member);
  void Lose(int64_t member);  // nothing happens where it has left before

  void Set(const std::string& key, const std::string& value);

  // Unavailable where a member is lost meanwhile.
  absl::StatusOr<std::string> Get(const std::string& key, const std::string& whom, absl::Duration timeout);

  // All ranks' values in rank order. Every rank that waits gets the same error: DeadlineExceeded names the
  // ranks that are missing, Unavailable the missing one that has left or is lost. A failed exchange stays
  // failed; one that succeeded may be held again under its name.
  absl::StatusOr<std::vector<std::string>> Exchange(int64_t member, const std::string& name,
                                                    const std::string& value, absl::Duration timeout);

  // Waits until every member has left or is lost. False: some have not.
  bool WaitUntilEmpty(absl::Duration timeout);

  // Every waiting call and every later wait returns `why`.
  void Close(absl::Status why);

 private:
  enum class Presence { kHere, kLeft, kLost };
  struct Member {
    Process process;
    Presence presence = Presence::kHere;
  };
  struct Round {
    std::map<int, std::string> values;  // by rank
    bool complete = false;
    absl::Status failure;
  };

  void Depart(int64_t member, Presence how);
  std::vector<int> Missing(const Round& round) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why the round can no longer complete; OK while it can.
  absl::Status Hopeless(const Round& round, const std::string& name) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TooLate(const Round& round, const std::string& name, absl::Duration timeout) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static std::string Describe(const Member& member);

  Mutex mutex_;
  CondVar changed_;
  std::vector<Member> members_ ABSL_GUARDED_BY(mutex_);
  std::map<int, int64_t> member_of_rank_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Round>> rounds_ ABSL_GUARDED_BY(mutex_);  // not complete
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace psring
