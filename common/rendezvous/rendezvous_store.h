// The state of the rendezvous service: members, values and pending exchanges. Free of networking, so tests
// need only threads; rendezvous_service.cc adds gRPC. A call that waits holds no thread: it ends in a
// callback, as soon as it has succeeded or can no longer succeed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/rendezvous/roster.h"

namespace psring {

// Beyond these, calls fail with ResourceExhausted.
struct StoreLimits {
  size_t keys = 1 << 20;     // and exchanges that are not complete
  size_t bytes = 1 << 30;    // of keys, values and errors
  size_t waiting = 1 << 17;  // calls
};
// Of a key, the name of an exchange or `whom`, which errors repeat. Longer ones are InvalidArgument.
inline constexpr size_t kMaxKeyBytes = 4096;

// Thread-safe.
class RendezvousStore {
 public:
  // The callback of a call. It is called once and without the store's lock: in the call itself, on a thread
  // that changes the store, or, after the deadline, on the store's own thread. It must not wait.
  using GetDone = std::function<void(absl::StatusOr<std::string>)>;
  using Values = std::shared_ptr<const std::vector<std::string>>;  // all ranks of an exchange share them
  using ExchangeDone = std::function<void(absl::StatusOr<Values>)>;
  using CallId = uint64_t;

  // `noun`: how errors name a rank.
  explicit RendezvousStore(const std::string& noun = "rank", const StoreLimits& limits = {})
      : limits_(limits), roster_(noun) {}
  // Ends the calls that wait.
  ~RendezvousStore();

  // See Roster::Join.
  absl::StatusOr<MemberId> Join(const Participant& process);
  bool Knows(const MemberId& member);
  // No effect for an unknown member, or one that has departed before.
  void Leave(const MemberId& member);
  void Lose(const MemberId& member);

  absl::Status Set(const std::string& key, const std::string& value);

  // Waits for the key. Unavailable if a member is lost meanwhile.
  CallId Get(const std::string& key, const std::string& whom, absl::Duration timeout, GetDone done);

  // The values of `ranks` (empty: of all) in rank order. Every waiting rank gets the same error:
  // DeadlineExceeded names the missing ranks, Unavailable the missing one that has left, is lost or was
  // rejected. A failed exchange stays failed and keeps no values; a successful one may be repeated under its
  // name. The value of a process that has gone counts until its timeout.
  CallId Exchange(const MemberId& member, const std::string& name, const std::string& value,
                  absl::Duration timeout, const std::vector<int>& ranks, ExchangeDone done);

  // The process that waits has disconnected: the call ends with Cancelled. No effect if it has ended.
  void Cancel(CallId call);

  absl::Status Surplus();                             // see Roster
  absl::Status CheckRanks(const std::string& where);  // see Roster::Hopeless
  void RankEnded(int rank, const std::string& why);   // see Roster
  void Refuse(int rank, const std::string& why);      // see Roster

  // Waits until every member has left or is lost. False: some have not.
  bool WaitUntilEmpty(absl::Duration timeout);

  // Every pending and later wait returns `why`.
  void Close(absl::Status why);

 private:
  struct Round {
    std::set<int> ranks;
    std::map<int, std::string> values;  // by rank
    std::vector<CallId> calls;          // that wait
    size_t bytes = 0;  // in the quota: of names and values; after a failure, of the name and the error
    // The first deadline of a rank, and its timeout.
    MonotonicTime deadline = MonotonicTime::InfiniteFuture();
    absl::Duration timeout;
    absl::Status failure;
  };
  struct WaitingGet {
    std::string key, whom;
    absl::Duration timeout;
    MonotonicTime deadline;
    GetDone done;
  };
  // Callbacks to run without the lock: declared before the lock, so destroyed after its release.
  class Ended {
   public:
    ~Ended() {
      for (const auto& call : calls_) call();
    }
    void Add(std::function<void()> call) { calls_.push_back(std::move(call)); }

   private:
    std::vector<std::function<void()>> calls_;
  };

  void Depart(const MemberId& member, Roster::Presence how);
  static std::vector<int> Missing(const Round& round);
  absl::Status CheckWaiting() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // An error if the store cannot hold so many more.
  absl::Status CheckSpace(size_t keys, size_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why a Get that has no value yet cannot succeed.
  absl::Status CheckGet(const std::string& whom) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The value of a rank enters its round, which is started if there is none.
  absl::Status Enter(CallId id, const MemberId& member, const std::string& name, const std::string& value,
                     absl::Duration timeout, const std::vector<int>& ranks, ExchangeDone& done, Ended& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the calls that wait in the round: with its values if it is complete, otherwise with its failure.
  void EndCalls(Round& round, Ended& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Fails the round if it can no longer succeed. Its values are discarded.
  void FailIfHopeless(const std::string& name, Round& round, Ended& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends every call that can no longer succeed.
  void EndHopeless(Ended& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Has EndHopeless called at `deadline`.
  void ExpireAt(MonotonicTime deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Expire();

  const StoreLimits limits_;
  Mutex mutex_;
  CondVar departed_;
  Roster roster_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Round>> rounds_ ABSL_GUARDED_BY(mutex_);  // incomplete ones
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  CallId last_call_ ABSL_GUARDED_BY(mutex_) = 0;
  // Calls that wait.
  std::map<CallId, WaitingGet> gets_ ABSL_GUARDED_BY(mutex_);
  std::map<CallId, std::pair<std::shared_ptr<Round>, ExchangeDone>> exchanges_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);

  // Of the thread that ends calls at their deadlines.
  CondVar earlier_;
  MonotonicTime next_expiry_ ABSL_GUARDED_BY(mutex_) = MonotonicTime::InfiniteFuture();
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread expiry_{[this] { Expire(); }};  // last: it uses the other members
};

}  // namespace psring
