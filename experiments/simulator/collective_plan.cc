#include "experiments/simulator/collective_plan.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "experiments/simulator/collective.h"
#include "ring_worker/schedules/lowered_schedule.h"

namespace psring {
namespace {

RankClasses Classify(const Schedule& schedule, int ranks_per_node) {
  RankClasses classes;
  // Groups that are neither parts of nodes nor whole nodes begin at another place on each node.
  const int period = schedule.symmetry_period();
  const bool fits = ranks_per_node % period == 0 || period % ranks_per_node == 0;
  std::map<std::vector<int>, size_t> node_kinds;
  std::map<std::pair<size_t, int>, size_t> numbers;  // (kind of node, place) -> class
  for (int first = 0; first < schedule.ranks(); first += ranks_per_node) {
    std::vector<int> node = {fits ? 0 : first % period};
    for (int place = 0; place < ranks_per_node; ++place)
      node.push_back(schedule.symmetry_class(first + place));
    const size_t kind = node_kinds.emplace(node, node_kinds.size()).first->second;
    for (int place = 0; place < ranks_per_node; ++place) {
      const auto [at, fresh] = numbers.emplace(std::pair(kind, place), classes.first.size());
      if (fresh) {
        classes.first.push_back(first + place);
        classes.size.push_back(0);
      }
      ++classes.size[at->second];
      classes.of.push_back(at->second);
    }
  }
  return classes;
}

class Planner {
 public:
  Planner(const Schedule& schedule, const Shape& shape)
      : schedule_(schedule), shape_(shape), max_rounds_(MaxRounds(schedule)) {
    plan_.classes = Classify(schedule, shape.ranks_per_node);
  }

  absl::StatusOr<CollectivePlan> Plan(int64_t wanted_slabs) {
    int64_t transfers = 0, groups = 0;
    for (const int rank : plan_.classes.first) {
      transfers += schedule_.rounds(rank);
      if (transfers > kMaxTransfers) return TooLarge();
    }
    transfers = 0;
    for (size_t c = 0; c < plan_.classes.first.size(); ++c) {
      for (const RoundMessages& round : plan_.rounds.emplace_back(RoundsOf(c))) {
        ++transfers;
        groups += static_cast<int64_t>(round.sends.size());
      }
      if (groups > kMaxTransfers) return TooLarge();
    }
    plan_.slabs = wanted_slabs;
    if (plan_.slabs * transfers > kMaxTransfers / 4) {
      plan_.slabs = std::max<int64_t>(1, kMaxTransfers / 4 / transfers);
    }
    return std::move(plan_);
  }

 private:
  absl::Status TooLarge() const {
    return absl::ResourceExhaustedError(
        absl::StrCat("a ", schedule_.name(), " of ", schedule_.ranks(), " ranks is too large to simulate"));
  }

  std::vector<RoundMessages> RoundsOf(size_t c) {
    std::vector<RoundMessages> rounds;
    const int own = plan_.classes.first[c];
    LoweredSchedule lowered = LowerSchedule(schedule_, own, max_rounds_, /*whole=*/true);
    for (size_t round = 0; round < lowered.rounds.size(); ++round) {
      if (lowered.after[round] == LoweredSchedule::kNoTransfers) continue;
      std::map<std::tuple<size_t, bool, int>, MessageGroup> sends, receives;
      const auto add = [&](auto& groups, int rank, int chunks, bool adds) {
        if (rank == own) return;  // local copy: no network
        const size_t peer = plan_.classes.of[rank];
        const bool same = rank / shape_.ranks_per_node == own / shape_.ranks_per_node;
        MessageGroup& group =
            groups.try_emplace({peer, same, chunks}, MessageGroup{peer, same, chunks, rank}).first->second;
        ++group.messages;
        group.first_peer = std::min(group.first_peer, rank);
        group.adds |= adds;
        const auto [from, to] = &groups == &sends ? std::pair(c, peer) : std::pair(peer, c);
        group.pair = pairs_.emplace(std::tuple(from, to, same), pairs_.size()).first->second;
      };
      for (const LoweredSend& send : lowered.rounds[round].sends) {
        add(sends, send.peer, send.chunk_count, false);
      }
      for (const LoweredReceive& receive : lowered.rounds[round].receives) {
        // The sum starts with the first source.
        for (size_t i = 0; i < receive.sources.size(); ++i) {
          add(receives, receive.sources[i], receive.chunk_count, i > 0);
        }
      }
      RoundMessages& messages = rounds.emplace_back(RoundMessages{static_cast<int>(round), {}, {}});
      for (auto& [key, group] : sends) {
        group.connection = ConnectionOf(c, group);
        messages.sends.push_back(group);
      }
      for (auto& [key, group] : receives) messages.receives.push_back(group);
    }
    plan_.after.push_back(std::move(lowered.after));
    return rounds;
  }

  size_t ConnectionOf(size_t from, const MessageGroup& group) {
    const auto [at, fresh] = numbers_.emplace(std::tuple(from, group.peer, group.first_peer, group.messages),
                                              plan_.connections.size());
    if (fresh) plan_.connections.push_back({from, group.peer, group.same_node, group.messages});
    return at->second;
  }

  const Schedule& schedule_;
  const Shape shape_;
  const int max_rounds_;
  CollectivePlan plan_;
  std::map<std::tuple<size_t, size_t, bool>, size_t> pairs_;
  std::map<std::tuple<size_t, size_t, int, int>, size_t> numbers_;  // of connections
};

}  // namespace

absl::StatusOr<CollectivePlan> PlanCollective(const Schedule& schedule, const Shape& shape,
                                              int64_t wanted_slabs) {
  return Planner(schedule, shape).Plan(wanted_slabs);
}

}  // namespace psring
