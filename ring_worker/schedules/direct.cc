#include "ring_worker/schedules/schedules.h"

namespace psring {
namespace {

// Rank r owns chunk r, like a sharded parameter server with a shard beside each worker
// (BytePS, Jiang et al. 2020). Scatter: each rank sends every owner its chunk, and the owner adds the others'
// values to its own in rank order. Gather: each owner sends its chunk to every rank.
//
//   all-reduce      both: 2 rounds, 2(N-1)/N M sent
//   reduce-scatter  the first: 1 round, (N-1)/N M sent
//   all-gather      the second: 1 round, (N-1)/N M sent
//   broadcast       both, where the root has all chunks from the start: (N-2)/N M sent, the root 2(N-1)/N M
//                  (van de Geijn's scatter and all-gather, in Thakur, Rabenseifner & Gropp 2005)
//
// All-to-all: every rank sends every other its block at once: 1 round, (N-1)/N M sent.
class Direct final : public EvenSchedule {
 public:
  Direct(Collective collective, int ranks, int root)
      : EvenSchedule("direct", ranks, ranks,
                     collective == Collective::kAllReduce || collective == Collective::kBroadcast ? 2 : 1),
        collective_(collective),
        root_(collective == Collective::kBroadcast ? root : -1) {}

  bool keeps_input() const override { return collective_ == Collective::kAllToAll; }

  void Round(int rank, int round, std::vector<Transfer>& transfers) const override {
    transfers.clear();
    if (collective_ == Collective::kAllToAll) {
      for (int step = 1; step < ranks(); ++step) PushExchange(rank, step, ranks(), transfers);
      return;
    }
    const bool scatter = round == 0 && collective_ != Collective::kAllGather;
    // Sends start with the next rank, so that they do not all go to the same rank first.
    for (int step = 1; step < ranks(); ++step) {
      const int peer = Wrap(rank + step, ranks());
      if (scatter ? Holds(rank) : peer != root_) {
        transfers.push_back({TransferKind::kSend, peer, scatter ? peer : rank, 1});
      }
    }
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer == rank || rank == root_ || (scatter && !Holds(peer))) continue;
      if (!scatter) {
        transfers.push_back({TransferKind::kReceive, peer, peer, 1});
      } else {
        transfers.push_back({root_ < 0 ? TransferKind::kReceiveAdd : TransferKind::kReceive, peer, rank, 1});
      }
    }
  }

  int symmetry_class(int rank) const override { return rank == root_ ? 1 : 0; }

 private:
  // Whether `rank` sends to every owner.
  bool Holds(int rank) const { return root_ < 0 || rank == root_; }

  const Collective collective_;
  const int root_;  // -1: none
};

}  // namespace

std::unique_ptr<Schedule> MakeDirect(Collective collective, const ScheduleShape& shape) {
  return std::make_unique<Direct>(collective, shape.ranks, shape.root);
}

ScheduleCost DirectCost(int ranks, double bytes) {
  const double n = ranks, all = 2 * (n - 1) * bytes;
  return {.terms = {2, all / n, all, (n - 1) / n * bytes},
          .payload_bytes = LeastPayload(n, bytes),
          .latency = "2 a",
          .bytes = "2(N-1)/N M/B",
          .adding = "(N-1)/N M g"};
}

ScheduleCost DirectExchangeCost(int ranks, double bytes) {
  return ExchangeCost(/*messages=*/1, ranks, bytes, "a");
}

}  // namespace psring
