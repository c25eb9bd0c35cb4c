#include "common/rendezvous/rendezvous_store.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/net/random_token.h"

namespace psring {
namespace {

absl::Status CheckKey(const std::string& key) {
  if (key.size() <= kMaxKeyBytes) return absl::OkStatus();
  return InvalidArgument("the rendezvous store does not accept a key or a name of ", key.size(),
                         " bytes; the limit is ", kMaxKeyBytes);
}

absl::Status TooLate(const std::string& key, const std::string& whom, absl::Duration timeout) {
  return DeadlineExceeded("waited ", SecondsText(timeout), " for ", whom, " ('", key, "')");
}

}  // namespace

RendezvousStore::~RendezvousStore() {
  Close(Unavailable("the rendezvous store has ended"));
  {
    MutexLock lock(mutex_);
    ends_ = true;
    earlier_.NotifyAll();
  }
  expiry_.join();
}

absl::StatusOr<MemberId> RendezvousStore::Join(const Participant& process) {
  Ended ended;
  MutexLock lock(mutex_);
  PSRING_RETURN_IF_ERROR(closed_);
  MemberId member(16, 0);
  FillWithRandom(member.data(), member.size());
  const absl::Status joined = roster_.Join(process, member);
  if (!joined.ok()) EndHopeless(ended);  // waits for a rejected rank must fail
  PSRING_RETURN_IF_ERROR(joined);
  return member;
}

bool RendezvousStore::Knows(const MemberId& member) {
  MutexLock lock(mutex_);
  return roster_.Find(member) != nullptr;
}

void RendezvousStore::Leave(const MemberId& member) { Depart(member, Roster::Presence::kLeft); }
void RendezvousStore::Lose(const MemberId& member) { Depart(member, Roster::Presence::kLost); }

void RendezvousStore::Depart(const MemberId& member, Roster::Presence how) {
  Ended ended;
  MutexLock lock(mutex_);
  roster_.Depart(member, how);
  EndHopeless(ended);
  departed_.NotifyAll();
}

absl::Status RendezvousStore::CheckWaiting() const {
  if (gets_.size() + exchanges_.size() < limits_.waiting) return absl::OkStatus();
  return ResourceExhausted("the rendezvous store already has ", limits_.waiting, " waiting calls, its limit");
}

absl::Status RendezvousStore::CheckSpace(size_t keys, size_t bytes) const {
  if (values_.size() + rounds_.size() + keys > limits_.keys) {
    return ResourceExhausted("the rendezvous store already has ", limits_.keys, " keys, its limit");
  }
  if (bytes > limits_.bytes || bytes_ > limits_.bytes - bytes) {
    return ResourceExhausted("the rendezvous store has no space for ", bytes, " bytes; its limit is ",
                             limits_.bytes);
  }
  return absl::OkStatus();
}

absl::Status RendezvousStore::Set(const std::string& key, const std::string& value) {
  PSRING_RETURN_IF_ERROR(CheckKey(key));
  Ended ended;
  MutexLock lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) {
    PSRING_RETURN_IF_ERROR(CheckSpace(1, key.size() + value.size()));
    bytes_ += key.size() + value.size();
    values_.emplace(key, value);
  } else {
    bytes_ -= found->second.size();
    const absl::Status space = CheckSpace(0, value.size());
    if (space.ok()) found->second = value;
    bytes_ += found->second.size();
    PSRING_RETURN_IF_ERROR(space);
  }
  for (auto waiting = gets_.begin(); waiting != gets_.end();) {
    if (waiting->second.key != key) {
      ++waiting;
      continue;
    }
    ended.Add([done = std::move(waiting->second.done), value] { done(value); });
    waiting = gets_.erase(waiting);
  }
  return absl::OkStatus();
}

absl::Status RendezvousStore::CheckGet(const std::string& whom) const {
  PSRING_RETURN_IF_ERROR(closed_);
  return roster_.LossDuring(whom);
}

RendezvousStore::CallId RendezvousStore::Get(const std::string& key, const std::string& whom,
                                             absl::Duration timeout, GetDone done) {
  Ended ended;
  MutexLock lock(mutex_);
  const CallId id = ++last_call_;
  const auto answer = [&](absl::StatusOr<std::string> value) {
    ended.Add([done = std::move(done), value = std::move(value)] { done(value); });
    return id;
  };
  for (const std::string& text : {key, whom}) {
    if (const absl::Status valid = CheckKey(text); !valid.ok()) return answer(valid);
  }
  if (const absl::Status waiting = CheckWaiting(); !waiting.ok()) return answer(waiting);
  if (const auto found = values_.find(key); found != values_.end()) return answer(found->second);
  if (const absl::Status possible = CheckGet(whom); !possible.ok()) return answer(possible);
  if (timeout <= absl::ZeroDuration()) return answer(TooLate(key, whom, timeout));
  const MonotonicTime deadline = MonotonicNow() + timeout;
  gets_[id] = {key, whom, timeout, deadline, std::move(done)};
  ExpireAt(deadline);
  return id;
}

std::vector<int> RendezvousStore::Missing(const Round& round) {
  std::vector<int> missing;
  for (const int rank : round.ranks) {
    if (!round.values.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

void RendezvousStore::EndCalls(Round& round, Ended& ended) {
  const auto result = [&]() -> absl::StatusOr<Values> {
    if (!round.failure.ok()) return round.failure;
    std::vector<std::string> values;
    values.reserve(round.values.size());
    for (auto& [rank, value] : round.values) values.push_back(std::move(value));
    return std::make_shared<const std::vector<std::string>>(std::move(values));
  }();
  for (const CallId id : std::exchange(round.calls, {})) {
    const auto call = exchanges_.find(id);
    if (call == exchanges_.end()) continue;  // it was cancelled
    ended.Add([done = std::move(call->second.second), result] { done(result); });
    exchanges_.erase(call);
  }
}

void RendezvousStore::FailIfHopeless(const std::string& name, Round& round, Ended& ended) {
  if (!round.failure.ok()) return;
  round.failure =
      closed_.ok() ? roster_.Hopeless(Missing(round), absl::StrCat("at exchange '", name, "'")) : closed_;
  if (round.failure.ok() && MonotonicNow() >= round.deadline) {
    round.failure = roster_.TooLate(Missing(round), name, round.timeout);
  }
  if (round.failure.ok()) return;
  round.values.clear();
  const size_t kept = name.size() + round.failure.message().size();
  bytes_ = bytes_ - std::exchange(round.bytes, kept) + kept;
  EndCalls(round, ended);
}

absl::Status RendezvousStore::Enter(CallId id, const MemberId& member, const std::string& name,
                                    const std::string& value, absl::Duration timeout,
                                    const std::vector<int>& ranks, ExchangeDone& done, Ended& ended) {
  PSRING_RETURN_IF_ERROR(CheckKey(name));
  PSRING_RETURN_IF_ERROR(CheckWaiting());
  const Participant* const process = roster_.Find(member);
  if (process == nullptr || process->rank < 0) {
    return FailedPrecondition("exchange '", name, "' is only for ranks that have joined");
  }
  if (ranks.size() > static_cast<size_t>(process->world_size)) {
    return FailedPrecondition("exchange '", name, "' has more ranks than the job");
  }
  std::set<int> among(ranks.begin(), ranks.end());
  for (int rank = 0; rank < process->world_size && ranks.empty(); ++rank) among.insert(among.end(), rank);
  if (!among.contains(process->rank) || *among.begin() < 0 || *among.rbegin() >= process->world_size) {
    return FailedPrecondition("rank ", process->rank, " is not part of exchange '", name, "'");
  }
  const auto found = rounds_.find(name);
  const bool is_new = found == rounds_.end();
  if (!is_new) {
    FailIfHopeless(name, *found->second, ended);
    PSRING_RETURN_IF_ERROR(found->second->failure);
  }
  const size_t bytes = name.size() + value.size();
  PSRING_RETURN_IF_ERROR(CheckSpace(is_new ? 1 : 0, bytes));
  const std::shared_ptr<Round> round = is_new ? std::make_shared<Round>() : found->second;
  if (is_new) round->ranks = std::move(among);
  if (!is_new && round->ranks != among) {
    return FailedPrecondition("exchange '", name, "' was started with other ranks than those of rank ",
                              process->rank);
  }
  if (!round->values.emplace(process->rank, value).second) {
    return FailedPrecondition("rank ", process->rank, " already waits at exchange '", name, "'");
  }
  rounds_[name] = round;
  round->bytes += bytes;
  bytes_ += bytes;
  round->calls.push_back(id);
  exchanges_[id] = {round, std::move(done)};
  if (const MonotonicTime deadline = MonotonicNow() + timeout; deadline < round->deadline) {
    round->deadline = deadline;
    round->timeout = timeout;
  }
  if (round->values.size() == round->ranks.size()) {
    bytes_ -= round->bytes;
    rounds_.erase(name);
    EndCalls(*round, ended);
  } else {
    FailIfHopeless(name, *round, ended);
    if (round->failure.ok()) ExpireAt(round->deadline);
  }
  return absl::OkStatus();
}

RendezvousStore::CallId RendezvousStore::Exchange(const MemberId& member, const std::string& name,
                                                  const std::string& value, absl::Duration timeout,
                                                  const std::vector<int>& ranks, ExchangeDone done) {
  Ended ended;
  MutexLock lock(mutex_);
  const CallId id = ++last_call_;
  const absl::Status entered = Enter(id, member, name, value, timeout, ranks, done, ended);
  if (!entered.ok()) ended.Add([done = std::move(done), entered] { done(entered); });
  return id;
}

void RendezvousStore::Cancel(CallId call) {
  const absl::Status gone = Cancelled("the process has disconnected");
  Ended ended;
  MutexLock lock(mutex_);
  if (const auto get = gets_.find(call); get != gets_.end()) {
    ended.Add([done = std::move(get->second.done), gone] { done(gone); });
    gets_.erase(get);
  }
  if (const auto exchange = exchanges_.find(call); exchange != exchanges_.end()) {
    ended.Add([done = std::move(exchange->second.second), gone] { done(gone); });
    exchanges_.erase(exchange);
  }
}

void RendezvousStore::EndHopeless(Ended& ended) {
  const MonotonicTime now = MonotonicNow();
  for (auto waiting = gets_.begin(); waiting != gets_.end();) {
    WaitingGet& get = waiting->second;
    absl::Status failure = CheckGet(get.whom);
    if (failure.ok() && now >= get.deadline) failure = TooLate(get.key, get.whom, get.timeout);
    if (failure.ok()) {
      ++waiting;
      continue;
    }
    ended.Add([done = std::move(get.done), failure] { done(failure); });
    waiting = gets_.erase(waiting);
  }
  for (auto& [name, round] : rounds_) FailIfHopeless(name, *round, ended);
}

void RendezvousStore::ExpireAt(MonotonicTime deadline) {
  if (deadline >= next_expiry_) return;
  next_expiry_ = deadline;
  earlier_.NotifyAll();
}

void RendezvousStore::Expire() {
  while (true) {
    Ended ended;
    MutexLock lock(mutex_);
    while (!ends_ && MonotonicNow() < next_expiry_) (void)earlier_.WaitUntil(mutex_, next_expiry_);
    if (ends_) return;
    EndHopeless(ended);
    next_expiry_ = MonotonicTime::InfiniteFuture();
    for (const auto& [id, get] : gets_) next_expiry_ = std::min(next_expiry_, get.deadline);
    for (const auto& [name, round] : rounds_) {
      if (round->failure.ok()) next_expiry_ = std::min(next_expiry_, round->deadline);
    }
  }
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
  Ended ended;
  MutexLock lock(mutex_);
  roster_.RankEnded(rank, why);
  EndHopeless(ended);
  departed_.NotifyAll();
}

void RendezvousStore::Refuse(int rank, const std::string& why) {
  Ended ended;
  MutexLock lock(mutex_);
  roster_.Refuse(rank, why);
  EndHopeless(ended);
}

bool RendezvousStore::WaitUntilEmpty(absl::Duration timeout) {
  const MonotonicTime deadline = MonotonicNow() + timeout;
  MutexLock lock(mutex_);
  for (bool in_time = true;; in_time = departed_.WaitUntil(mutex_, deadline)) {
    if (!roster_.AnyoneHere()) return true;
    if (!in_time) return false;
  }
}

void RendezvousStore::Close(absl::Status why) {
  Ended ended;
  MutexLock lock(mutex_);
  if (closed_.ok()) closed_ = std::move(why);
  EndHopeless(ended);
}

}  // namespace psring
