#include "experiments/lecture/checks/checks.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ring_worker/schedules/schedule.h"
#include "ring_worker/schedules/schedule_check.h"

namespace psring {
namespace {

// Of the README's text; 1 is a ring without rounds, and 7 is odd and larger than the picture.
constexpr int kRanks[] = {1, 2, 3, 4, 7, 8, 16};

// A solution for one number of ranks.
class SolvedRing final : public Schedule {
 public:
  SolvedRing(const RingSolution& solution, int ranks) : all_(ranks) {
    for (int rank = 0; rank < ranks; ++rank) solution(ranks, rank, all_[rank]);
  }

  std::string name() const override { return "ring"; }
  int ranks() const override { return static_cast<int>(all_.size()); }
  int chunks() const override { return ranks(); }
  int rounds(int rank) const override { return static_cast<int>(all_[rank].size()); }
  void Round(int rank, int round, std::vector<Transfer>& transfers) const override {
    const RingRound& one = all_[rank][round];
    transfers.assign(
        {{TransferKind::kSend, one.to, one.sent, 1},
         {one.adds ? TransferKind::kReceiveAdd : TransferKind::kReceive, one.from, one.received, 1}});
  }

  const std::vector<std::vector<RingRound>>& all() const { return all_; }  // [rank][round]

 private:
  std::vector<std::vector<RingRound>> all_;
};

// What is wrong, or empty.
std::string WrongRounds(const SolvedRing& ring) {
  const int fewest = 2 * (ring.ranks() - 1);
  for (int rank = 0; rank < ring.ranks(); ++rank) {
    if (ring.rounds(rank) == fewest) continue;
    return absl::StrCat("rank ", rank, " has ", ring.rounds(rank), " rounds; expected 2(N-1) = ", fewest);
  }
  return "";
}

std::string WrongNeighbors(const SolvedRing& ring) {
  const int ranks = ring.ranks();
  for (int rank = 0; rank < ranks; ++rank) {
    const int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
    for (int round = 0; round < ring.rounds(rank); ++round) {
      const RingRound& one = ring.all()[rank][round];
      const auto wrong = [&](const char* does, int peer, int expected) {
        return absl::StrCat("rank ", rank, does, peer, " in round ", round, "; expected ", expected);
      };
      if (one.to != right) return wrong(" sends to rank ", one.to, right);
      if (one.from != left) return wrong(" receives from rank ", one.from, left);
    }
  }
  return "";
}

std::string WrongResult(const SolvedRing& ring) {
  std::string message(CheckSchedule(ring, Collective::kAllReduce).message());
  const std::string before = "is broken: ";
  if (const size_t at = message.find(before); at != std::string::npos) message.erase(0, at + before.size());
  return message.substr(0, message.find("; copies_sends()"));  // a setting that students do not have
}

// Of the first known mistake, in the order of rounds; empty: none.
std::string RingHint(const SolvedRing& ring) {
  const int adding = ring.ranks() - 1;
  for (int rank = 0; rank < ring.ranks(); ++rank) {
    if (ring.ranks() > 1 && ring.rounds(rank) == 0) return "fill in ListRounds";
    if (ring.rounds(rank) > 2 * adding) return "there are too many rounds: each phase has N-1";
    for (int round = 0; round < ring.rounds(rank); ++round) {
      const RingRound& one = ring.all()[rank][round];
      if (one.sent < 0 || one.received < 0)
        return "in C++, -1 % N is -1; add N before you take the remainder";
      if (one.sent == one.received) return "a rank sends one chunk and receives another in the same round";
      if (round < adding && !one.adds)
        return "in the first N-1 rounds a received chunk is a part of a sum: the rank adds it (adds = true)";
      if (round >= adding && one.adds)
        return "after N-1 rounds a received chunk is a complete sum: it replaces the rank's own (adds = "
               "false)";
      if (round > 0 && one.sent != ring.all()[rank][round - 1].received)
        return "a rank sends in each round the chunk that it received in the round before";
    }
    if (ring.rounds(rank) == adding)
      return "this is the first phase; in N-1 more rounds, the sums go around the ring";
  }
  return "";
}

}  // namespace

std::vector<TapPoint> CheckRing(const RingSolution& solution) {
  std::vector<TapPoint> points;
  for (const int ranks : kRanks) {
    const SolvedRing ring(solution, ranks);
    const auto add = [&](const std::string& name, const std::string& failure) {
      const std::string of = absl::StrCat("N=", ranks, ": ");
      points.push_back({.name = of + name,
                        .failure = failure.empty() ? "" : of + failure,
                        .hint = failure.empty() ? "" : RingHint(ring)});
    };
    add("every rank has 2(N-1) rounds", WrongRounds(ring));
    add("every rank sends to its right neighbor and receives from its left one", WrongNeighbors(ring));
    add("sends match receives, and every rank ends with every sum", WrongResult(ring));
  }
  return points;
}

}  // namespace psring
