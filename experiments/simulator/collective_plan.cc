#include "experiments/simulator/collective_plan.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "experiments/simulator/collective.h"

namespace psring {
namespace {

RankClasses Classify(const Schedule& schedule, int ranks_per_node) {
  RankClasses classes;
  std::map<std::vector<int>, int> node_kinds;
  std::map<std::pair<int, int>, int> numbers;  // (kind of node, place) -> class
  std::vector<int> node;
  for (int first = 0; first < schedule.ranks(); first += ranks_per_node) {
    node.clear();
    for (int place = 0; place < ranks_per_node; ++place)
      node.push_back(schedule.symmetry_class(first + place));
    const int kind = node_kinds.emplace(node, static_cast<int>(node_kinds.size())).first->second;
    for (int place = 0; place < ranks_per_node; ++place) {
      const auto [at, fresh] =
          numbers.emplace(std::pair(kind, place), static_cast<int>(classes.first.size()));
      if (fresh) {
        classes.first.push_back(first + place);
        classes.size.push_back(0);
      }
      ++classes.size[static_cast<size_t>(at->second)];
      classes.of.push_back(at->second);
    }
  }
  return classes;
}

class Planner {
 public:
  Planner(const Schedule& schedule, const Shape& shape) : schedule_(schedule), shape_(shape) {
    plan_.classes = Classify(schedule, shape.ranks_per_node);
  }

  absl::StatusOr<CollectivePlan> Plan(int64_t wanted_slabs) {
    int64_t transfers = 0;
    for (const int rank : plan_.classes.first) {
      transfers += schedule_.rounds(rank);
      if (transfers > kMostTransfers) {
        return absl::ResourceExhaustedError(absl::StrCat("a ", schedule_.name(), " of ", schedule_.ranks(),
                                                         " ranks is too large to simulate"));
      }
    }
    transfers = 0;
    for (size_t c = 0; c < plan_.classes.first.size(); ++c) {
      const std::vector<RoundMessages>& rounds = plan_.rounds.emplace_back(RoundsOf(static_cast<int>(c)));
      if (!rounds.empty()) plan_.most_rounds = std::max<int64_t>(plan_.most_rounds, rounds.back().round + 1);
      transfers += static_cast<int64_t>(rounds.size());
    }
    plan_.slabs = wanted_slabs;
    if (plan_.slabs * transfers > kMostTransfers / 4) {
      plan_.slabs = std::max<int64_t>(1, kMostTransfers / 4 / transfers);
    }
    return std::move(plan_);
  }

 private:
  std::vector<RoundMessages> RoundsOf(int c) {
    std::vector<RoundMessages> rounds;
    std::vector<Transfer> list;
    const int own = plan_.classes.first[static_cast<size_t>(c)];
    for (int round = 0; round < schedule_.rounds(own); ++round) {
      schedule_.Round(own, round, list);
      std::map<std::tuple<int, bool, int>, MessageGroup> sends, receives;
      for (const Transfer& transfer : list) {
        if (transfer.peer == own) continue;  // local copy: no network
        const int peer = plan_.classes.of[static_cast<size_t>(transfer.peer)];
        const bool same = transfer.peer / shape_.ranks_per_node == own / shape_.ranks_per_node;
        const bool send = transfer.kind == TransferKind::kSend;
        MessageGroup& group = (send ? sends : receives)
                                  .try_emplace({peer, same, transfer.chunk_count},
                                               MessageGroup{peer, same, transfer.chunk_count, transfer.peer})
                                  .first->second;
        ++group.messages;
        group.first_peer = std::min(group.first_peer, transfer.peer);
        group.adds |= transfer.kind == TransferKind::kReceiveAdd;
        group.pair = send ? PairOf(c, peer, same) : PairOf(peer, c, same);
      }
      if (sends.empty() && receives.empty()) continue;
      RoundMessages& messages = rounds.emplace_back(RoundMessages{round, {}, {}});
      for (auto& [key, group] : sends) {
        group.connection = ConnectionOf(c, group);
        messages.sends.push_back(group);
      }
      for (auto& [key, group] : receives) messages.receives.push_back(group);
    }
    return rounds;
  }

  int PairOf(int from, int to, bool same) {
    return pairs_.emplace(std::tuple(from, to, same), static_cast<int>(pairs_.size())).first->second;
  }

  int ConnectionOf(int from, const MessageGroup& group) {
    const auto [at, fresh] = numbers_.emplace(std::tuple(from, group.peer, group.first_peer, group.messages),
                                              static_cast<int>(plan_.connections.size()));
    if (fresh) plan_.connections.push_back({from, group.peer, group.same_node, group.messages});
    return at->second;
  }

  const Schedule& schedule_;
  const Shape shape_;
  CollectivePlan plan_;
  std::map<std::tuple<int, int, bool>, int> pairs_;
  std::map<std::tuple<int, int, int, int>, int> numbers_;  // of connections
};

}  // namespace

absl::StatusOr<CollectivePlan> PlanCollective(const Schedule& schedule, const Shape& shape,
                                              int64_t wanted_slabs) {
  return Planner(schedule, shape).Plan(wanted_slabs);
}

}  // namespace psring
