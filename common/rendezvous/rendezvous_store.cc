#include "common/rendezvous/rendezvous_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"

namespace psring {

absl::StatusOr<int64_t> RendezvousStore::Join(const Participant& process) {
  MutexLock lock(mutex_);
  PSRING_RETURN_IF_ERROR(closed_);
  absl::StatusOr<int64_t> member = roster_.Join(process);
  changed_.NotifyAll();  // waits for a rejected rank must fail
  return member;
}

void RendezvousStore::Leave(int64_t member) { Depart(member, Roster::Presence::kLeft); }
void RendezvousStore::Lose(int64_t member) { Depart(member, Roster::Presence::kLost); }

void RendezvousStore::Depart(int64_t member, Roster::Presence how) {
  MutexLock lock(mutex_);
  roster_.Depart(member, how);
  changed_.NotifyAll();
}

void RendezvousStore::Set(const std::string& key, const std::string& value) {
  MutexLock lock(mutex_);
  values_[key] = value;
  changed_.NotifyAll();
}

absl::StatusOr<std::string> RendezvousStore::Get(const std::string& key, const std::string& whom,
                                                 absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  MutexLock lock(mutex_);
  for (bool in_time = true;; in_time = changed_.WaitUntil(mutex_, deadline)) {
    if (const auto found = values_.find(key); found != values_.end()) return found->second;
    PSRING_RETURN_IF_ERROR(closed_);
    PSRING_RETURN_IF_ERROR(roster_.LossDuring(whom));
    if (!in_time) {
      return absl::DeadlineExceededError(
          absl::StrCat("waited ", SecondsText(timeout), " for ", whom, " ('", key, "')"));
    }
  }
}

std::vector<int> RendezvousStore::Missing(const Round& round) {
  std::vector<int> missing;
  for (const int rank : round.ranks) {
    if (!round.values.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

absl::StatusOr<std::vector<std::string>> RendezvousStore::Exchange(int64_t member, const std::string& name,
                                                                   const std::string& value,
                                                                   absl::Duration timeout,
                                                                   const std::vector<int>& ranks) {
  const absl::Time deadline = absl::Now() + timeout;
  MutexLock lock(mutex_);
  if (!roster_.HasRank(member)) {
    return absl::FailedPreconditionError(
        absl::StrCat("exchange '", name, "' is only for ranks that have joined"));
  }
  const Participant process = roster_.at(member);  // a copy: members may join while we wait
  std::set<int> among(ranks.begin(), ranks.end());
  for (int rank = 0; rank < process.world_size && ranks.empty(); ++rank) among.insert(rank);
  if (!among.contains(process.rank) || *among.begin() < 0 || *among.rbegin() >= process.world_size) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", process.rank, " is not part of exchange '", name, "'"));
  }
  std::shared_ptr<Round>& open = rounds_[name];
  if (open == nullptr) {
    open = std::make_shared<Round>();
    open->ranks = among;
  }
  // A copy: the map's entry goes when the round completes, or a next one takes its place.
  const std::shared_ptr<Round> round = open;
  PSRING_RETURN_IF_ERROR(round->failure);
  if (round->ranks != among) {
    return absl::FailedPreconditionError(
        absl::StrCat("exchange '", name, "' was started with other ranks than those of rank ", process.rank));
  }
  if (!round->values.emplace(process.rank, value).second) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", process.rank, " already waits at exchange '", name, "'"));
  }
  if (round->values.size() == round->ranks.size()) {
    round->complete = true;
    rounds_.erase(name);
    changed_.NotifyAll();
  }
  for (bool in_time = true; !round->complete; in_time = changed_.WaitUntil(mutex_, deadline)) {
    if (!round->failure.ok()) return round->failure;
    round->failure = closed_.ok() ? roster_.Hopeless(Missing(*round), name) : closed_;
    if (round->failure.ok() && !in_time) round->failure = roster_.TooLate(Missing(*round), name, timeout);
    if (!round->failure.ok()) {
      changed_.NotifyAll();
      return round->failure;
    }
  }
  std::vector<std::string> values;
  values.reserve(round->values.size());
  for (const auto& [rank, text] : round->values) values.push_back(text);
  return values;
}

absl::Status RendezvousStore::Surplus() {
  MutexLock lock(mutex_);
  return roster_.Surplus();
}

bool RendezvousStore::WaitUntilEmpty(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  MutexLock lock(mutex_);
  for (bool in_time = true;; in_time = changed_.WaitUntil(mutex_, deadline)) {
    if (!roster_.AnyoneHere()) return true;
    if (!in_time) return false;
  }
}

void RendezvousStore::Close(absl::Status why) {
  MutexLock lock(mutex_);
  if (closed_.ok()) closed_ = std::move(why);
  changed_.NotifyAll();
}

}  // namespace psring
