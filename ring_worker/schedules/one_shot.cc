#include "ring_worker/schedules/schedules.h"

namespace psring {
namespace {

// Everything in one round: for messages so small that only the number of rounds matters.
//
//   all-reduce      every rank sends to every other: (N-1) M sent. Each forms the whole sum itself, in rank
//                  order, so that all have the same bits. The only schedule in which a rank
//                  receives into a chunk that it sends.
//   reduce-scatter  each rank's chunk goes to its owner: (N-1)/N M sent
//   all-gather      every rank sends its chunk to every other: (N-1)/N M sent
//   broadcast       the root sends to every other: (N-1) M sent by the root
class OneShot final : public EvenSchedule {
 public:
  OneShot(Collective collective, int ranks, int root)
      : EvenSchedule("one-shot", ranks, OwnParts(collective, ranks), 1),
        collective_(collective),
        root_(collective == Collective::kBroadcast ? root : -1) {}

  void Round(int rank, int, std::vector<Transfer>& transfers) const override {
    transfers.clear();
    for (int step = 1; step < ranks(); ++step) {
      const int peer = Wrap(rank + step, ranks());
      if (root_ < 0 || rank == root_) transfers.push_back({TransferKind::kSend, peer, Chunk(rank, peer), 1});
    }
    for (int peer = 0; peer < ranks(); ++peer) {
      if (root_ >= 0 ? peer == root_ && rank != root_ : peer != rank || AddsItself(rank)) {
        transfers.push_back(
            {peer == rank ? TransferKind::kReceiveAdd : Receives(peer), peer, Chunk(peer, rank), 1});
      }
    }
  }

  bool copies_sends() const override { return collective_ == Collective::kAllReduce && ranks() > 1; }
  int symmetry_class(int rank) const override {
    if (root_ >= 0) return rank == root_ ? 0 : 1;
    return AddsItself(rank) ? 1 : 0;
  }

 private:
  // What one rank sends to another.
  int Chunk(int from, int to) const {
    if (collective_ == Collective::kReduceScatter) return to;
    return collective_ == Collective::kAllGather ? from : 0;
  }

  // Sums start with rank 0's value, so other ranks add their own value at their position.
  bool AddsItself(int rank) const { return collective_ == Collective::kAllReduce && rank > 0; }

  TransferKind Receives(int peer) const {
    if (collective_ == Collective::kReduceScatter) return TransferKind::kReceiveAdd;
    return collective_ == Collective::kAllReduce && peer > 0 ? TransferKind::kReceiveAdd
                                                             : TransferKind::kReceive;
  }

  const Collective collective_;
  const int root_;  // -1: none
};

}  // namespace

std::unique_ptr<Schedule> MakeOneShot(Collective collective, const ScheduleShape& shape) {
  if (collective == Collective::kAllToAll) return nullptr;
  return std::make_unique<OneShot>(collective, shape.ranks, shape.root);
}

}  // namespace psring
