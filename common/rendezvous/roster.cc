#include "common/rendezvous/roster.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/errors.h"
#include "common/text/peer_text.h"

namespace psring {
namespace {

constexpr size_t kMaxNameBytes = 1024;
constexpr size_t kMaxRefusals = 1000;  // remembered
constexpr size_t kMaxRefusalBytes = 4096;

}  // namespace

std::string SecondsText(absl::Duration duration) {
  return absl::StrFormat("%g s", absl::ToDoubleSeconds(duration));
}

std::string RanksText(const std::vector<int>& ranks, const std::string& noun) {
  if (ranks.empty()) return absl::StrCat("no ", noun);
  if (ranks.size() == 1) return absl::StrCat(noun, " ", ranks[0]);
  constexpr size_t kMax = 16;
  if (ranks.size() > kMax) {
    return absl::StrCat(noun, "s ", absl::StrJoin(ranks.begin(), ranks.begin() + kMax, ", "), " and ",
                        ranks.size() - kMax, " more");
  }
  return absl::StrCat(noun, "s ", absl::StrJoin(ranks.begin(), ranks.end() - 1, ", "), " and ", ranks.back());
}

std::string Roster::Describe(const Member& member) const {
  if (member.process.rank < 0) return absl::StrCat("the process ", member.process.name);
  return absl::StrCat(noun_, " ", member.process.rank, " (", member.process.name, ")");
}

absl::Status Roster::Admit(const Participant& process) const {
  if (members_.size() >= kMaxMembers) {
    return ResourceExhausted("more than ", kMaxMembers, " processes have joined");
  }
  if (process.name.size() > kMaxNameBytes) {
    return InvalidArgument("a process joined with a name that is too long");
  }
  if (process.world_size > kMaxRanks) {
    return InvalidArgument("the world size ", process.world_size, " is above the limit of ", kMaxRanks, " ",
                           noun_, "s");
  }
  if (process.rank < 0) return absl::OkStatus();
  if (process.rank >= process.world_size) {
    return InvalidArgument(noun_, " ", process.rank, " is not below the world size ", process.world_size);
  }
  if (const auto taken = member_of_rank_.find(process.rank); taken != member_of_rank_.end()) {
    const Member& other = *taken->second;
    return AlreadyExists(
        process.name, " claims to be ", noun_, " ", process.rank, ", which is taken by ", other.process.name,
        other.presence == Presence::kHere ? absl::StrCat("; give every process a ", noun_, " of its own")
                                          : absl::StrCat(", which has ended; restart all ", noun_, "s"));
  }
  if (member_of_rank_.empty() || world_size() == process.world_size) return absl::OkStatus();
  return InvalidArgument("the world size of ", noun_, " ", process.rank, " (", process.name, ") is ",
                         process.world_size, ", that of ", Describe(*member_of_rank_.begin()->second), " is ",
                         world_size());
}

absl::Status Roster::Join(const Participant& joining, const MemberId& id) {
  Participant process = joining;
  if (process.name.size() <= kMaxNameBytes) process.name = PeerText(process.name);
  if (const absl::Status admitted = Admit(process); !admitted.ok()) {
    Refuse(process.rank, std::string(admitted.message()));
    return admitted;
  }
  Member* const member = &members_.emplace_back(Member{process});
  members_by_id_[id] = member;
  if (process.rank >= 0) member_of_rank_[process.rank] = member;
  return absl::OkStatus();
}

void Roster::Refuse(int rank, const std::string& why) {
  if (refused_.size() < kMaxRefusals) refused_.push_back({rank, PeerText(why, kMaxRefusalBytes)});
}

void Roster::RankEnded(int rank, const std::string& why) {
  const auto joined = member_of_rank_.find(rank);
  if (joined == member_of_rank_.end()) return Refuse(rank, why);
  Depart(*joined->second, Presence::kLost);
}

void Roster::Depart(const MemberId& id, Presence how) {
  if (const auto found = members_by_id_.find(id); found != members_by_id_.end()) Depart(*found->second, how);
}

void Roster::Depart(Member& departing, Presence how) {
  if (departing.presence != Presence::kHere) return;
  departing.presence = how;
  departing.departure = departures_++;
}

const Participant* Roster::Find(const MemberId& id) const {
  const auto found = members_by_id_.find(id);
  return found == members_by_id_.end() ? nullptr : &found->second->process;
}

int Roster::world_size() const {
  return member_of_rank_.empty() ? 0 : member_of_rank_.begin()->second->process.world_size;
}

bool Roster::AnyoneHere() const {
  return std::ranges::find(members_, Presence::kHere, &Member::presence) != members_.end();
}

// Others leave because of the first rank that died, that was rejected, or that left; in this order.
absl::Status Roster::Hopeless(const std::vector<int>& missing, const std::string& where) const {
  const Member* first = nullptr;
  const Refusal* rejected = nullptr;
  const auto cause = [](const Member& member) {
    return std::pair(member.presence != Presence::kLost, member.departure);
  };
  for (const int rank : missing) {
    const auto joined = member_of_rank_.find(rank);
    if (joined == member_of_rank_.end()) {
      const auto refusal = std::ranges::find(refused_, rank, &Refusal::rank);
      if (rejected == nullptr && refusal != refused_.end()) rejected = &*refusal;
      continue;
    }
    const Member& member = *joined->second;
    if (member.presence != Presence::kHere && (first == nullptr || cause(member) < cause(*first))) {
      first = &member;
    }
  }
  const bool died = first != nullptr && first->presence == Presence::kLost;
  if (!died && rejected != nullptr) return Unavailable(rejected->why);
  if (first == nullptr) return absl::OkStatus();
  return Unavailable(Describe(*first), died ? " has died" : " has left", " while others waited for it ",
                     where);
}

absl::Status Roster::Hopeless(const std::string& where) const {
  std::vector<int> all(static_cast<size_t>(world_size()));
  std::iota(all.begin(), all.end(), 0);
  return Hopeless(all, where);
}

std::string Roster::Joined() const {
  constexpr size_t kMax = 16;
  std::vector<std::string> names;
  for (const auto& [rank, member] : member_of_rank_) {
    if (names.size() < kMax) names.push_back(Describe(*member));
  }
  if (names.empty()) return "";
  const size_t more = member_of_rank_.size() - names.size();
  return absl::StrCat("; joined: ", absl::StrJoin(names, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

absl::Status Roster::TooLate(const std::vector<int>& missing, const std::string& name,
                             absl::Duration timeout) const {
  std::vector<int> unseen = missing;
  std::erase_if(unseen, [&](int rank) { return member_of_rank_.contains(rank); });
  return DeadlineExceeded(
      "waited ", SecondsText(timeout), " for ", RanksText(missing, noun_), " at exchange '", name, "'",
      unseen.empty() ? "" : absl::StrCat("; ", RanksText(unseen, noun_), " never joined", Joined()),
      refused_.empty() ? "" : absl::StrCat("; ", refused_.back().why));
}

absl::Status Roster::Surplus() const {
  for (const Refusal& refusal : refused_) {
    if (refusal.rank >= world_size() && world_size() > 0) return Unavailable(refusal.why);
  }
  return absl::OkStatus();
}

absl::Status Roster::LossDuring(const std::string& whom) const {
  for (const Member& member : members_) {
    if (member.presence != Presence::kLost) continue;
    return Unavailable(Describe(member), " has died while others waited for ", whom);
  }
  for (const Refusal& refusal : refused_) {
    if (refusal.rank < 0) return Unavailable(refusal.why);
  }
  return absl::OkStatus();
}

}  // namespace psring
