// The state of the rendezvous service: members, values and pending exchanges. Free of networking, so tests
// need only threads; rendezvous.cc adds gRPC. A wait fails as soon as it can no longer succeed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
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
  size_t bytes = 1 << 30;    // of keys, values and errors
  size_t waiting = 1 << 12;  // calls; each holds a thread of the service
};
// Of a key, the name of an exchange or `whom`, which errors repeat. Longer ones are InvalidArgument.
inline constexpr size_t kMostKeyBytes = 4096;

// Whether the process that waits in a call has disconnected: then the call ends with Cancelled. Called with
// the store's lock.
using IsGone = std::function<bool()>;

// Thread-safe.
class RendezvousStore {
 public:
  // `noun`: how errors name a rank.
  explicit RendezvousStore(const std::string& noun = "rank", const StoreLimits& limits = {})
      : limits_(limits), roster_(noun) {}

  // See Roster::Join.
  absl::StatusOr<MemberId> Join(const Participant& process);
  bool Knows(const MemberId& member);
  // No effect for an unknown member, or one that has departed before.
  void Leave(const MemberId& member);
  void Lose(const MemberId& member);

  absl::Status Set(const std::string& key, const std::string& value);

  // Unavailable if a member is lost meanwhile.
  absl::StatusOr<std::string> Get(const std::string& key, const std::string& whom, absl::Duration timeout,
                                  const IsGone& is_gone = {});

  // The values of `ranks` (empty: of all) in rank order. Every waiting rank gets the same error:
  // DeadlineExceeded names the missing ranks, Unavailable the missing one that has left, is lost or was
  // rejected. A failed exchange stays failed and keeps no values; a successful one may be repeated under its
  // name. The value of a process that has gone counts until its timeout.
  absl::StatusOr<std::vector<std::string>> Exchange(const MemberId& member, const std::string& name,
                                                    const std::string& value, absl::Duration timeout,
                                                    const std::vector<int>& ranks = {},
                                                    const IsGone& is_gone = {});

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
    size_t bytes = 0;  // in the quota: of names and values; after a failure, of the name and the error
    // The first deadline of a rank, and its timeout.
    absl::Time deadline = absl::InfiniteFuture();
    absl::Duration timeout;
    absl::Status failure;
  };
  struct WaitingCall;

  void Depart(const MemberId& member, Roster::Presence how);
  static std::vector<int> Missing(const Round& round);
  // An error if the store cannot hold so many more.
  absl::Status CheckSpace(size_t keys, size_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same, after the values of exchanges that cannot succeed have been discarded.
  absl::Status MakeSpace(size_t keys, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The round that `process` takes part in; starts it if there is none.
  absl::StatusOr<std::shared_ptr<Round>> Enter(const Participant& process, const std::string& name,
                                               const std::string& value, const std::vector<int>& ranks,
                                               absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Fails the round if it can no longer succeed. Its values are discarded.
  void FailIfHopeless(const std::string& name, Round& round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for a change, at most until `deadline`; returns early if `is_gone` must be asked. False: too late.
  bool AwaitChange(absl::Time deadline, const IsGone& is_gone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

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
