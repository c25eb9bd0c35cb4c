// The state of the rendezvous service: members, values and pending exchanges. Free of networking, so tests
// need only threads; rendezvous.cc adds gRPC. A wait fails as soon as it can no longer succeed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/rendezvous/roster.h"

namespace psring {

// 128 random bits, so that a process can speak only for itself.
using MemberId = std::string;

// Beyond these, calls fail with ResourceExhausted.
struct StoreLimits {
  size_t keys = 1 << 20;     // and exchanges that are not complete
  size_t bytes = 1 << 30;    // of keys and values
  size_t waiting = 1 << 12;  // calls; each holds a thread of the service
};

// Thread-safe.
class RendezvousStore {
 public:
  // `noun`: how errors name a rank.
  explicit RendezvousStore(const std::string& noun = "rank", const StoreLimits& limits = {})
      : limits_(limits), roster_(noun) {}

  // See Roster::Join.
  absl::StatusOr<MemberId> Join(const Participant& process);
  // No effect for an unknown member, or one that has departed before.
  void Leave(const MemberId& member);
  void Lose(const MemberId& member);

  absl::Status Set(const std::string& key, const std::string& value);

  // Unavailable if a member is lost meanwhile.
  absl::StatusOr<std::string> Get(const std::string& key, const std::string& whom, absl::Duration timeout);

  // The values of `ranks` (empty: of all) in rank order. Every waiting rank gets the same error:
  // DeadlineExceeded names the missing ranks, Unavailable the missing one that has left, is lost or was
  // rejected. A failed exchange stays failed; a successful one may be repeated under its name.
  absl::StatusOr<std::vector<std::string>> Exchange(const MemberId& member, const std::string& name,
                                                    const std::string& value, absl::Duration timeout,
                                                    const std::vector<int>& ranks = {});

  absl::Status Surplus();                             // see Roster
  absl::Status CheckRanks(const std::string& where);  // see Roster::Hopeless
  void RankEnded(int rank, const std::string& why);   // see Roster

  // Waits until every member has left or is lost. False: some have not.
  bool WaitUntilEmpty(absl::Duration timeout);

  // Every pending and later wait returns `why`.
  void Close(absl::Status why);

 private:
  struct Round {
    std::set<int> ranks;
    std::map<int, std::string> values;  // by rank
    bool complete = false;
    size_t bytes = 0;  // of the values
    absl::Status failure;
  };
  struct WaitingCall;

  void Depart(const MemberId& member, Roster::Presence how);
  static std::vector<int> Missing(const Round& round);
  // An error if the store cannot hold so many more.
  absl::Status CheckSpace(size_t keys, size_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The round that `process` takes part in; starts it if there is none.
  absl::StatusOr<std::shared_ptr<Round>> Enter(const Participant& process, const std::string& name,
                                               const std::string& value, const std::vector<int>& ranks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the values of a round that is complete or has failed from the quota.
  void Release(Round& round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    bytes_ -= std::exchange(round.bytes, 0);
  }

  const StoreLimits limits_;
  Mutex mutex_;
  CondVar changed_;
  Roster roster_ ABSL_GUARDED_BY(mutex_);
  std::map<MemberId, int64_t> members_ ABSL_GUARDED_BY(mutex_);  // their numbers in the roster
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Round>> rounds_ ABSL_GUARDED_BY(mutex_);  // incomplete ones
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace psring
