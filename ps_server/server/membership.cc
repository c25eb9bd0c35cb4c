#include "ps_server/server/membership.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "common/base/errors.h"

namespace psring {

std::string WorkersText(const std::vector<int>& workers) {
  return absl::StrCat(workers.size() == 1 ? "worker " : "workers ", absl::StrJoin(workers, ", "));
}

std::string RanksBeside(const std::vector<int>& workers, const std::vector<int>& ranks) {
  std::vector<int> named;
  for (const int worker : workers) {
    if (static_cast<size_t>(worker) < ranks.size()) named.push_back(ranks[static_cast<size_t>(worker)]);
  }
  if (named.empty()) return "";
  return absl::StrCat(named.size() == 1 ? " (rank " : " (ranks ", absl::StrJoin(named, ", "), ")");
}

absl::Status AtBucket(const absl::Status& status, int worker, int bucket) {
  return Prefixed(status, "worker ", worker, ", bucket ", bucket, ": ");
}

absl::StatusOr<Membership::Entry> Membership::EntryOf(const Joining& joining, bool started) const {
  const int worker = joining.worker;
  const Member& known = of(worker);
  const bool same_session = joining.again && joining.session == known.session && joining.session != 0;
  if (known.presence == Presence::kAbsent) return Entry::kFirst;
  if (known.presence == Presence::kLost) return Entry::kReturns;
  if (known.presence == Presence::kLeft && same_session) return Entry::kAnsweredAgain;
  if (known.presence == Presence::kJoined && started && same_session) return Entry::kResumes;
  if (known.presence == Presence::kJoined && known.gone_ns != 0) {
    return Cancelled("worker ", worker, " is being removed; join again");
  }
  return AlreadyExists("there is a worker ", worker, " already");
}

void Membership::Join(const Joining& joining) {
  at(joining.worker) = {.presence = Presence::kJoined,
                        .session = joining.session,
                        .again = joining.again,
                        .epoch = joining.epoch};
}

bool Membership::Disconnect(int worker, int64_t now_ns, int64_t patience_ns, const std::string& why) {
  Member& member = at(worker);
  if (member.presence != Presence::kJoined) return false;
  member.gone_ns = now_ns;
  member.patience_ns = member.session != 0 ? patience_ns : 0;
  member.why = why;
  return true;
}

bool Membership::Expel(int worker, int64_t now_ns, const std::string& why) {
  if (!Disconnect(worker, now_ns, 0, why)) return false;
  at(worker).session = 0;
  return true;
}

void Membership::AwaitReturn(int worker, bool lost, int64_t now_ns, int64_t patience_ns) {
  Member& member = at(worker);
  if (lost) member.presence = Presence::kLost;
  member.gone_ns = now_ns;
  member.patience_ns = patience_ns;
  member.why = "it did not reconnect to the restarted server";
}

bool Membership::IsGone(int worker) const { return of(worker).gone_ns != 0 && Expected(worker); }

void Membership::Lose(int worker) {
  at(worker).presence = Presence::kLost;
  at(worker).gone_ns = 0;
}

std::vector<std::pair<int, bool>> Membership::Present() const {
  std::vector<std::pair<int, bool>> present;
  for (const int worker : Those(Presence::kJoined)) present.emplace_back(worker, of(worker).again);
  return present;
}

std::vector<int> Membership::Those(Presence presence) const {
  return WorkersWhere(members_.size(), [&](size_t i) { return members_[i].presence == presence; });
}

std::vector<std::pair<int, std::string>> Membership::Overdue(int64_t now_ns) const {
  std::vector<std::pair<int, std::string>> overdue;
  for (size_t i = 0; i < members_.size(); ++i) {
    const int worker = static_cast<int>(i);
    if (!IsGone(worker) || now_ns - members_[i].gone_ns < members_[i].patience_ns) continue;
    overdue.emplace_back(worker, members_[i].why);
  }
  return overdue;
}

bool Membership::OthersRemain(int worker) const {
  for (size_t i = 0; i < members_.size(); ++i) {
    if (static_cast<int>(i) != worker && members_[i].presence != Presence::kLost) return true;
  }
  return false;
}

int64_t Membership::NewestEpoch() const {
  int64_t newest = 0;
  for (const Member& member : members_) newest = std::max(newest, member.epoch);
  return newest;
}

std::pair<int, int> Membership::CountExpectedAndLeft() const {
  const auto count = [this](Presence presence) { return static_cast<int>(Those(presence).size()); };
  return {count(Presence::kJoined) + count(Presence::kAbsent), count(Presence::kLeft)};
}

void Membership::PassBarriers(int end) { std::fill_n(passed_, end, true); }

Membership::Released Membership::ReleaseBarriers() {
  Released released;
  for (int number = 0; number < kBarriers; ++number) {
    int waiting = 0, missing = 0;
    for (size_t i = 0; i < members_.size(); ++i) {
      if (!Expected(static_cast<int>(i))) continue;
      ++(members_[i].barrier == number ? waiting : missing);
    }
    if (waiting == 0 || (missing > 0 && !passed_[number])) continue;
    released.last = released.last || (number == kBarriers - 1 && !passed_[number]);
    passed_[number] = true;
    for (size_t i = 0; i < members_.size(); ++i) {
      if (members_[i].barrier != number) continue;
      members_[i].barrier = -1;
      released.workers.emplace_back(static_cast<int>(i), number);
    }
  }
  return released;
}

std::vector<int> Membership::MissingAtBarrier() const {
  bool any_waits = false;
  std::vector<int> missing = WorkersWhere(members_.size(), [&](size_t i) {
    const bool waits = members_[i].barrier >= 0, expected = Expected(static_cast<int>(i));
    any_waits = any_waits || (expected && waits);
    return expected && !waits;
  });
  return any_waits ? missing : std::vector<int>();
}

}  // namespace psring
