// The state of the rendezvous service: members, values and pending exchanges. Free of networking, so tests
// need only threads; rendezvous.cc adds gRPC. A wait fails as soon as it can no longer succeed.
#pragma once

#include <cstdint>
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

// Thread-safe.
class RendezvousStore {
 public:
  // `noun`: how errors name a rank.
  explicit RendezvousStore(const std::string& noun = "rank") : roster_(noun) {}

  // See Roster::Join.
  absl::StatusOr<int64_t> Join(const Participant& process);
  void Leave(int64_t member);
  void Lose(int64_t member);  // no effect if it has left before

  void Set(const std::string& key, const std::string& value);

  // Unavailable if a member is lost meanwhile.
  absl::StatusOr<std::string> Get(const std::string& key, const std::string& whom, absl::Duration timeout);

  // The values of `ranks` (empty: of all) in rank order. Every waiting rank gets the same error:
  // DeadlineExceeded names the missing ranks, Unavailable the missing one that has left, is lost or was
  // rejected. A failed exchange stays failed; a successful one may be repeated under its name.
  absl::StatusOr<std::vector<std::string>> Exchange(int64_t member, const std::string& name,
                                                    const std::string& value, absl::Duration timeout,
                                                    const std::vector<int>& ranks = {});

  absl::Status Surplus();  // see Roster

  // Waits until every member has left or is lost. False: some have not.
  bool WaitUntilEmpty(absl::Duration timeout);

  // Every pending and later wait returns `why`.
  void Close(absl::Status why);

 private:
  struct Round {
    std::set<int> ranks;
    std::map<int, std::string> values;  // by rank
    bool complete = false;
    absl::Status failure;
  };

  void Depart(int64_t member, Roster::Presence how);
  static std::vector<int> Missing(const Round& round);

  Mutex mutex_;
  CondVar changed_;
  Roster roster_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Round>> rounds_ ABSL_GUARDED_BY(mutex_);  // incomplete ones
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace psring
