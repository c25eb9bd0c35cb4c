#include "common/rendezvous_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/check.h"

namespace psring {

std::string SecondsText(absl::Duration duration) {
  return absl::StrFormat("%g s", absl::ToDoubleSeconds(duration));
}

std::string RanksText(const std::vector<int>& ranks) {
  if (ranks.empty()) return "no rank";
  if (ranks.size() == 1) return absl::StrCat("rank ", ranks[0]);
  constexpr size_t kMost = 16;
  if (ranks.size() > kMost) {
    return absl::StrCat("ranks ", absl::StrJoin(ranks.begin(), ranks.begin() + kMost, ", "), " and ",
                        ranks.size() - kMost, " more");
  }
  return absl::StrCat("ranks ", absl::StrJoin(ranks.begin(), ranks.end() - 1, ", "), " and ", ranks.back());
}

std::string RendezvousStore::Describe(const Member& member) {
  if (member.process.rank < 0) return absl::StrCat("the process ", member.process.name);
  return absl::StrCat("rank ", member.process.rank, " (", member.process.name, ")");
}

absl::StatusOr<int64_t> RendezvousStore::Join(const Process& process) {
  MutexLock lock(mutex_);
  PSRING_RETURN_IF_ERROR(closed_);
  if (process.rank >= 0) {
    if (process.rank >= process.world_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", process.rank, " is not below the world size ", process.world_size));
    }
    if (const auto taken = member_of_rank_.find(process.rank); taken != member_of_rank_.end()) {
      const Member& other = members_[taken->second];
      return absl::AlreadyExistsError(absl::StrCat("rank ", process.rank, " is taken by ", other.process.name,
                                                   other.presence == Presence::kHere
                                                       ? "; give every process a rank of its own"
                                                       : ", which has ended; start all ranks anew"));
    }
    if (!member_of_rank_.empty()) {
      const Member& other = members_[member_of_rank_.begin()->second];
      if (other.process.world_size != process.world_size) {
        return absl::InvalidArgumentError(absl::StrCat("the world size of rank ", process.rank, " is ",
                                                       process.world_size, ", that of ", Describe(other),
                                                       " is ", other.process.world_size));
      }
    }
  }
  const int64_t member = static_cast<int64_t>(members_.size());
  members_.push_back({process});
  if (process.rank >= 0) member_of_rank_[process.rank] = member;
  return member;
}

void RendezvousStore::Leave(int64_t member) { Depart(member, Presence::kLeft); }
void RendezvousStore::Lose(int64_t member) { Depart(member, Presence::kLost); }

void RendezvousStore::Depart(int64_t member, Presence how) {
  MutexLock lock(mutex_);
  if (member < 0 || member >= static_cast<int64_t>(members_.size())) return;
  if (members_[member].presence != Presence::kHere) return;
  members_[member].presence = how;
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
    for (const Member& member : members_) {
      if (member.presence != Presence::kLost) continue;
      return absl::UnavailableError(
          absl::StrCat(Describe(member), " has died while others waited for ", whom));
    }
    if (!in_time) {
      return absl::DeadlineExceededError(
          absl::StrCat("waited ", SecondsText(timeout), " for ", whom, " ('", key, "')"));
    }
  }
}

std::vector<int> RendezvousStore::Missing(const Round& round) const {
  const int world_size = members_[member_of_rank_.begin()->second].process.world_size;
  std::vector<int> missing;
  for (int rank = 0; rank < world_size; ++rank) {
    if (!round.values.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

absl::Status RendezvousStore::Hopeless(const Round& round, const std::string& name) const {
  PSRING_RETURN_IF_ERROR(closed_);
  for (const int rank : Missing(round)) {
    const auto joined = member_of_rank_.find(rank);
    if (joined == member_of_rank_.end()) continue;
    const Member& member = members_[joined->second];
    if (member.presence == Presence::kHere) continue;
    return absl::UnavailableError(absl::StrCat(Describe(member),
                                               member.presence == Presence::kLost ? " has died" : " has left",
                                               " while others waited for it at exchange '", name, "'"));
  }
  return absl::OkStatus();
}

absl::Status RendezvousStore::TooLate(const Round& round, const std::string& name,
                                      absl::Duration timeout) const {
  const std::vector<int> missing = Missing(round);
  std::vector<int> unseen = missing;
  std::erase_if(unseen, [&](int rank) { return member_of_rank_.contains(rank); });
  return absl::DeadlineExceededError(
      absl::StrCat("waited ", SecondsText(timeout), " for ", RanksText(missing), " at exchange '", name, "'",
                   unseen.empty() ? "" : absl::StrCat("; ", RanksText(unseen), " never joined")));
}

absl::StatusOr<std::vector<std::string>> RendezvousStore::Exchange(int64_t member, const std::string& name,
                                                                   const std::string& value,
                                                                   absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  MutexLock lock(mutex_);
  if (member < 0 || member >= static_cast<int64_t>(members_.size()) || members_[member].process.rank < 0) {
    return absl::FailedPreconditionError(absl::StrCat("exchange '", name, "' is for ranks that have joined"));
  }
  const Process process = members_[member].process;  // a copy: members may join while we wait
  std::shared_ptr<Round>& open = rounds_[name];
  if (open == nullptr) open = std::make_shared<Round>();
  // A copy: the map's entry goes when the round completes, or a next one takes its place.
  const std::shared_ptr<Round> round = open;
  PSRING_RETURN_IF_ERROR(round->failure);
  if (!round->values.emplace(process.rank, value).second) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", process.rank, " waits at exchange '", name, "' already"));
  }
  if (round->values.size() == static_cast<size_t>(process.world_size)) {
    round->complete = true;
    rounds_.erase(name);
    changed_.NotifyAll();
  }
  for (bool in_time = true; !round->complete; in_time = changed_.WaitUntil(mutex_, deadline)) {
    if (!round->failure.ok()) return round->failure;
    round->failure = Hopeless(*round, name);
    if (round->failure.ok() && !in_time) round->failure = TooLate(*round, name, timeout);
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

bool RendezvousStore::WaitUntilEmpty(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  MutexLock lock(mutex_);
  for (bool in_time = true;; in_time = changed_.WaitUntil(mutex_, deadline)) {
    if (std::none_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.presence == Presence::kHere; })) {
      return true;
    }
    if (!in_time) return false;
  }
}

void RendezvousStore::Close(absl::Status why) {
  MutexLock lock(mutex_);
  if (closed_.ok()) closed_ = std::move(why);
  changed_.NotifyAll();
}

}  // namespace psring
