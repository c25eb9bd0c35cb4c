#include "ring_worker/schedules/schedules.h"

namespace psring {
namespace {

// The parameter server's pattern on one of the ranks: the centre takes in every other rank's whole buffer, in
// rank order so that the sum's bits are always the same, and hands the sum back.
class Star final : public Schedule {
 public:
  explicit Star(int ranks) : ranks_(ranks) {}

  std::string name() const override { return "star"; }
  int ranks() const override { return ranks_; }
  int chunks() const override { return 1; }
  int rounds(int) const override { return ranks_ == 1 ? 0 : 2; }

  void Round(int rank, int round, std::vector<Transfer>& transfers) const override {
    const bool gather = round == 0;
    transfers.clear();
    if (rank != 0) {
      transfers.push_back({gather ? Action::kSend : Action::kReceive, 0, 0, 1});
      return;
    }
    for (int peer = 1; peer < ranks_; ++peer) {
      transfers.push_back({gather ? Action::kReceiveAdd : Action::kSend, peer, 0, 1});
    }
  }

  int symmetry_class(int rank) const override { return rank == 0 ? 0 : 1; }

 private:
  const int ranks_;
};

class Broadcast final : public Schedule {
 public:
  Broadcast(int ranks, int root) : ranks_(ranks), root_(root) {}

  std::string name() const override { return "star broadcast"; }
  int ranks() const override { return ranks_; }
  int chunks() const override { return 1; }
  int rounds(int) const override { return ranks_ == 1 ? 0 : 1; }

  void Round(int rank, int, std::vector<Transfer>& transfers) const override {
    transfers.clear();
    if (rank != root_) {
      transfers.push_back({Action::kReceive, root_, 0, 1});
      return;
    }
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer != root_) transfers.push_back({Action::kSend, peer, 0, 1});
    }
  }

  int symmetry_class(int rank) const override { return rank == root_ ? 0 : 1; }

 private:
  const int ranks_;
  const int root_;
};

}  // namespace

std::unique_ptr<Schedule> MakeStar(Collective collective, const ScheduleShape& shape) {
  if (collective == Collective::kAllReduce) return std::make_unique<Star>(shape.ranks);
  if (collective == Collective::kBroadcast) return std::make_unique<Broadcast>(shape.ranks, shape.root);
  return nullptr;
}

}  // namespace psring
