#include "common/rendezvous/rendezvous_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/net/random_token.h"

namespace psring {
namespace {

// Between two questions whether the process that waits has disconnected.
constexpr absl::Duration kAskEvery = absl::Seconds(1);

absl::Status CheckKey(const std::string& key) {
  if (key.size() <= kMostKeyBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the rendezvous store does not accept a key or a name of ",
                                                 key.size(), " bytes; the limit is ", kMostKeyBytes));
}

absl::Status Gone() { return absl::CancelledError("the process has disconnected"); }

}  // namespace

// Counts a call while it waits, under the store's lock.
struct RendezvousStore::WaitingCall {
  explicit WaitingCall(RendezvousStore& of) ABSL_NO_THREAD_SAFETY_ANALYSIS : store(of) { ++store.waiting_; }
  ~WaitingCall() ABSL_NO_THREAD_SAFETY_ANALYSIS { --store.waiting_; }
  WaitingCall(const WaitingCall&) = delete;
  WaitingCall& operator=(const WaitingCall&) = delete;

  absl::Status Check() const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (store.waiting_ <= store.limits_.waiting) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("the rendezvous store already has ",
                                                     store.limits_.waiting, " waiting calls, its limit"));
  }

  RendezvousStore& store;
};

absl::StatusOr<MemberId> RendezvousStore::Join(const Participant& process) {
  MutexLock lock(mutex_);
  PSRING_RETURN_IF_ERROR(closed_);
  const absl::StatusOr<int64_t> number = roster_.Join(process);
  changed_.NotifyAll();  // waits for a rejected rank must fail
  PSRING_RETURN_IF_ERROR(number.status());
  const uint64_t bits[] = {KernelRandom(), KernelRandom()};
  MemberId member(reinterpret_cast<const char*>(bits), sizeof bits);
  members_[member] = *number;
  return member;
}

bool RendezvousStore::Knows(const MemberId& member) {
  MutexLock lock(mutex_);
  return members_.contains(member);
}

void RendezvousStore::Leave(const MemberId& member) { Depart(member, Roster::Presence::kLeft); }
void RendezvousStore::Lose(const MemberId& member) { Depart(member, Roster::Presence::kLost); }

void RendezvousStore::Depart(const MemberId& member, Roster::Presence how) {
  MutexLock lock(mutex_);
  const auto found = members_.find(member);
  if (found == members_.end()) return;
  roster_.Depart(found->second, how);
  changed_.NotifyAll();
}

absl::Status RendezvousStore::CheckSpace(size_t keys, size_t bytes) const {
  if (values_.size() + rounds_.size() + keys > limits_.keys) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the rendezvous store already has ", limits_.keys, " keys, its limit"));
  }
  if (bytes > limits_.bytes || bytes_ > limits_.bytes - bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the rendezvous store has no space for ", bytes,
                                                     " bytes; its limit is ", limits_.bytes));
  }
  return absl::OkStatus();
}

absl::Status RendezvousStore::MakeSpace(size_t keys, size_t bytes) {
  if (const absl::Status space = CheckSpace(keys, bytes); space.ok()) return space;
  for (auto& [name, round] : rounds_) FailIfHopeless(name, *round);
  return CheckSpace(keys, bytes);
}

absl::Status RendezvousStore::Set(const std::string& key, const std::string& value) {
  PSRING_RETURN_IF_ERROR(CheckKey(key));
  MutexLock lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) {
    PSRING_RETURN_IF_ERROR(MakeSpace(1, key.size() + value.size()));
    bytes_ += key.size() + value.size();
    values_.emplace(key, value);
  } else {
    bytes_ -= found->second.size();
    const absl::Status space = MakeSpace(0, value.size());
    if (space.ok()) found->second = value;
    bytes_ += found->second.size();
    PSRING_RETURN_IF_ERROR(space);
  }
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::StatusOr<std::string> RendezvousStore::Get(const std::string& key, const std::string& whom,
                                                 absl::Duration timeout, const IsGone& is_gone) {
  PSRING_RETURN_IF_ERROR(CheckKey(key));
  PSRING_RETURN_IF_ERROR(CheckKey(whom));
  const absl::Time deadline = absl::Now() + timeout;
  MutexLock lock(mutex_);
  const WaitingCall call(*this);
  PSRING_RETURN_IF_ERROR(call.Check());
  for (bool in_time = true;; in_time = AwaitChange(deadline, is_gone)) {
    if (const auto found = values_.find(key); found != values_.end()) return found->second;
    PSRING_RETURN_IF_ERROR(closed_);
    PSRING_RETURN_IF_ERROR(roster_.LossDuring(whom));
    if (is_gone && is_gone()) return Gone();
    if (!in_time) {
      return absl::DeadlineExceededError(
          absl::StrCat("waited ", SecondsText(timeout), " for ", whom, " ('", key, "')"));
    }
  }
}

bool RendezvousStore::AwaitChange(absl::Time deadline, const IsGone& is_gone) {
  const absl::Time until = is_gone ? std::min(deadline, absl::Now() + kAskEvery) : deadline;
  return changed_.WaitUntil(mutex_, until) || absl::Now() < deadline;
}

std::vector<int> RendezvousStore::Missing(const Round& round) {
  std::vector<int> missing;
  for (const int rank : round.ranks) {
    if (!round.values.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

void RendezvousStore::FailIfHopeless(const std::string& name, Round& round) {
  if (round.complete || !round.failure.ok()) return;
  round.failure =
      closed_.ok() ? roster_.Hopeless(Missing(round), absl::StrCat("at exchange '", name, "'")) : closed_;
  if (round.failure.ok() && absl::Now() >= round.deadline) {
    round.failure = roster_.TooLate(Missing(round), name, round.timeout);
  }
  if (round.failure.ok()) return;
  round.values.clear();
  const size_t kept = name.size() + round.failure.message().size();
  bytes_ = bytes_ - std::exchange(round.bytes, kept) + kept;
  changed_.NotifyAll();
}

absl::StatusOr<std::shared_ptr<RendezvousStore::Round>> RendezvousStore::Enter(const Participant& process,
                                                                               const std::string& name,
                                                                               const std::string& value,
                                                                               const std::vector<int>& ranks,
                                                                               absl::Duration timeout) {
  if (ranks.size() > static_cast<size_t>(process.world_size)) {
    return absl::FailedPreconditionError(absl::StrCat("exchange '", name, "' has more ranks than the job"));
  }
  std::set<int> among(ranks.begin(), ranks.end());
  for (int rank = 0; rank < process.world_size && ranks.empty(); ++rank) among.insert(rank);
  if (!among.contains(process.rank) || *among.begin() < 0 || *among.rbegin() >= process.world_size) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", process.rank, " is not part of exchange '", name, "'"));
  }
  const size_t bytes = name.size() + value.size();
  const auto found = rounds_.find(name);
  if (found != rounds_.end()) FailIfHopeless(name, *found->second);  // all of its ranks may have gone
  const absl::Status space = MakeSpace(found == rounds_.end() ? 1 : 0, bytes);
  PSRING_RETURN_IF_ERROR(found == rounds_.end() ? absl::OkStatus() : found->second->failure);
  PSRING_RETURN_IF_ERROR(space);
  // A copy: the map's entry goes when the round completes, or a next one takes its place.
  std::shared_ptr<Round> round = found != rounds_.end() ? found->second : std::make_shared<Round>();
  if (found == rounds_.end()) round->ranks = among;
  if (round->ranks != among) {
    return absl::FailedPreconditionError(
        absl::StrCat("exchange '", name, "' was started with other ranks than those of rank ", process.rank));
  }
  if (!round->values.emplace(process.rank, value).second) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", process.rank, " already waits at exchange '", name, "'"));
  }
  rounds_[name] = round;
  round->bytes += bytes;
  bytes_ += bytes;
  if (const absl::Time deadline = absl::Now() + timeout; deadline < round->deadline) {
    round->deadline = deadline;
    round->timeout = timeout;
  }
  return round;
}

absl::StatusOr<std::vector<std::string>> RendezvousStore::Exchange(
    const MemberId& member, const std::string& name, const std::string& value, absl::Duration timeout,
    const std::vector<int>& ranks, const IsGone& is_gone) {
  PSRING_RETURN_IF_ERROR(CheckKey(name));
  MutexLock lock(mutex_);
  const WaitingCall call(*this);
  PSRING_RETURN_IF_ERROR(call.Check());
  const auto found = members_.find(member);
  if (found == members_.end() || !roster_.HasRank(found->second)) {
    return absl::FailedPreconditionError(
        absl::StrCat("exchange '", name, "' is only for ranks that have joined"));
  }
  const Participant process = roster_.at(found->second);  // a copy: members may join while we wait
  PSRING_ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, Enter(process, name, value, ranks, timeout));
  if (round->values.size() == round->ranks.size()) {
    round->complete = true;
    bytes_ -= std::exchange(round->bytes, 0);
    rounds_.erase(name);
    changed_.NotifyAll();
  }
  for (; !round->complete; (void)AwaitChange(round->deadline, is_gone)) {
    FailIfHopeless(name, *round);
    PSRING_RETURN_IF_ERROR(round->failure);
    if (is_gone && is_gone()) return Gone();
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

absl::Status RendezvousStore::CheckRanks(const std::string& where) {
  MutexLock lock(mutex_);
  return roster_.Hopeless(where);
}

void RendezvousStore::RankEnded(int rank, const std::string& why) {
  MutexLock lock(mutex_);
  roster_.RankEnded(rank, why);
  changed_.NotifyAll();
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
