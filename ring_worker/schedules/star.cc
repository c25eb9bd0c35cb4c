#include "ring_worker/schedules/schedules.h"

namespace psring {
namespace {

// The parameter server's pattern on one of the ranks, in two rounds: the center receives every other rank's
// values, in rank order so that a sum's bits are always the same, and sends each rank its result.
//
//   all-reduce      M sent, the center (N-1) M
//   reduce-scatter  M sent, the center (N-1)/N M
//   all-gather      M/N sent, the center (N-1)^2/N M: a rank is not sent its own chunk
//   broadcast       one round; the root is the center: (N-1) M
class Star final : public EvenSchedule {
 public:
  Star(Collective collective, int ranks, int center)
      : EvenSchedule("star", ranks, OwnParts(collective, ranks),
                     collective == Collective::kBroadcast ? 1 : 2),
        collective_(collective),
        center_(center) {}

  void Round(int rank, int round, std::vector<Transfer>& transfers) const override {
    transfers.clear();
    const bool gather = round == 0 && collective_ != Collective::kBroadcast;
    const TransferKind takes =
        collective_ == Collective::kAllGather ? TransferKind::kReceive : TransferKind::kReceiveAdd;
    for (int peer = 0; peer < ranks(); ++peer) {
      const int leaf = rank == center_ ? peer : rank;
      if (peer == rank || (rank != center_ && peer != center_)) continue;
      if (gather) {
        Gather(leaf, rank == center_ ? takes : TransferKind::kSend, peer, transfers);
      } else {
        HandOut(leaf, rank == center_ ? TransferKind::kSend : TransferKind::kReceive, peer, transfers);
      }
    }
  }

  int symmetry_class(int rank) const override { return rank == center_ ? 0 : 1; }

 private:
  // What `leaf` sends to the center, from either side's view.
  void Gather(int leaf, TransferKind kind, int peer, std::vector<Transfer>& transfers) const {
    const bool one = collective_ == Collective::kAllGather;
    transfers.push_back({kind, peer, one ? leaf : 0, one ? 1 : chunks()});
  }

  // What `leaf` receives from the center, from either side's view.
  void HandOut(int leaf, TransferKind kind, int peer, std::vector<Transfer>& transfers) const {
    if (collective_ == Collective::kAllGather) return PushAllBut(leaf, chunks(), kind, peer, transfers);
    transfers.push_back({kind, peer, collective_ == Collective::kReduceScatter ? leaf : 0, 1});
  }

  const Collective collective_;
  const int center_;
};

}  // namespace

std::unique_ptr<Schedule> MakeStar(Collective collective, const ScheduleShape& shape) {
  if (collective == Collective::kAllToAll) return nullptr;
  return std::make_unique<Star>(collective, shape.ranks,
                                collective == Collective::kBroadcast ? shape.root : 0);
}

ScheduleCost StarCost(int ranks, double bytes) {
  const double n = ranks, all = 2 * (n - 1) * bytes;
  return {.terms = {2, all, all, (n - 1) * bytes},
          .payload_bytes = LeastPayload(n, bytes),
          .latency = "2 a",
          .bytes = "2(N-1) M/B",
          .adding = "(N-1) M g",
          .one_direction = true};
}

}  // namespace psring
