#include "ring_worker/schedules/schedules.h"

namespace psring {
namespace {

// Data moves to the right, one chunk per round: a rank sends in each round what it received in the previous
// one.
//
// Scatter-reduce: a chunk starts at one rank, and each rank on its way adds its own share; after N-1 rounds
// the last one holds the complete sum. All-gather: each chunk goes once around. So a chunk's sum is formed in
// one fixed order, and all ranks hold copies of one result.
//
//   all-reduce      both: 2(N-1) rounds, 2(N-1)/N M sent, the minimum
//   reduce-scatter  the first: N-1 rounds, (N-1)/N M sent
//   all-gather      the second: N-1 rounds, (N-1)/N M sent
// (Patarasuk & Yuan 2009.)
class Ring final : public EvenSchedule {
 public:
  Ring(Collective collective, int ranks)
      : EvenSchedule("ring", ranks, ranks, (collective == Collective::kAllReduce ? 2 : 1) * (ranks - 1)),
        adding_rounds_(collective == Collective::kAllGather ? 0 : ranks - 1),
        // Rank p sends chunk p first; in a reduce-scatter p - 1, so that its last received chunk is p.
        shift_(collective == Collective::kReduceScatter ? 1 : 0) {}

  void Round(int rank, int round, std::vector<Transfer>& transfers) const override {
    const int sent = Wrap(rank - shift_ - round, ranks());
    const TransferKind kind = round < adding_rounds_ ? TransferKind::kReceiveAdd : TransferKind::kReceive;
    transfers.assign({{TransferKind::kSend, Wrap(rank + 1, ranks()), sent, 1},
                      {kind, Wrap(rank - 1, ranks()), Wrap(sent - 1, ranks()), 1}});
  }

  int symmetry_class(int) const override { return 0; }

 private:
  const int adding_rounds_;
  const int shift_;
};

// A chain from the root around the ring: N-1 rounds, M sent (the last rank sends nothing). As one segment it
// is slow; with many segments pipelined through the chain, it takes little more than one transfer's time.
class Chain final : public EvenSchedule {
 public:
  Chain(int ranks, int root) : EvenSchedule("ring", ranks, 1, ranks - 1), root_(root) {}

  void Round(int rank, int round, std::vector<Transfer>& transfers) const override {
    const int distance = Wrap(rank - root_, ranks());
    transfers.clear();
    if (round == distance) transfers.push_back({TransferKind::kSend, Wrap(rank + 1, ranks()), 0, 1});
    if (round == distance - 1) transfers.push_back({TransferKind::kReceive, Wrap(rank - 1, ranks()), 0, 1});
  }

 private:
  const int root_;
};

}  // namespace

std::unique_ptr<Schedule> MakeRing(Collective collective, const ScheduleShape& shape) {
  if (collective == Collective::kAllToAll) return nullptr;
  if (collective == Collective::kBroadcast) return std::make_unique<Chain>(shape.ranks, shape.root);
  return std::make_unique<Ring>(collective, shape.ranks);
}

ScheduleCost RingCost(int ranks, double bytes) {
  const double n = ranks, all = 2 * (n - 1) * bytes;
  return {.terms = {2 * (n - 1), all / n, all, (n - 1) / n * bytes},
          .payload_bytes = LeastPayload(n, bytes),
          .latency = "2(N-1) a",
          .bytes = "2(N-1)/N M/B",
          .adding = "(N-1)/N M g"};
}

}  // namespace psring
