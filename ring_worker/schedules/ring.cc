#include "ring_worker/schedules/schedules.h"

namespace psring {
namespace {

// Everything moves to the right. Scatter-reduce: chunk c sets out from rank c and each rank on its way adds
// its own share, so after N-1 rounds rank p holds the whole sum of chunk p + 1. All-gather: the sums go on
// around. A chunk's sum is therefore formed in one fixed order, and all ranks hold copies of one result.
class Ring final : public Schedule {
 public:
  explicit Ring(int ranks) : ranks_(ranks) {}

  std::string name() const override { return "ring"; }
  int ranks() const override { return ranks_; }
  int chunks() const override { return ranks_; }
  int rounds(int) const override { return 2 * (ranks_ - 1); }

  void Round(int rank, int round, std::vector<Transfer>& transfers) const override {
    const bool reduce = round < ranks_ - 1;
    // What a rank receives in one round it sends in the next, across the seam of the two phases too.
    const int sent = Wrap(rank - round);
    transfers.assign({{Action::kSend, Wrap(rank + 1), sent, 1},
                      {reduce ? Action::kReceiveAdd : Action::kReceive, Wrap(rank - 1), Wrap(sent - 1), 1}});
  }

  int symmetry_class(int) const override { return 0; }

 private:
  int Wrap(int n) const { return ((n % ranks_) + ranks_) % ranks_; }

  const int ranks_;
};

}  // namespace

std::unique_ptr<Schedule> MakeRing(Collective collective, const ScheduleShape& shape) {
  if (collective != Collective::kAllReduce) return nullptr;
  return std::make_unique<Ring>(shape.ranks);
}

}  // namespace psring
