#include "ring_worker/schedules/schedules.h"

namespace psring {
namespace {

// For nodes with fast links inside and slow links between them: G ranks on each of n nodes, N = n G. Each
// rank of a node owns a shard, adds it up over the node's ranks in their order (its own value first),
// all-reduces it in a ring with the ranks that have the same local number on other nodes, and sends it to the
// node's ranks. So each rank of a node carries 1/G of the traffic between nodes, all concurrently.
//
//   all-reduce  2 + 2(n-1) rounds; sent within the node 2(G-1)/G M, to other nodes 2(n-1)/n M/G
//
// (Two-level schemes are common; Goyal et al. 2017, for example, reduce within a server first.) Shard g is
// chunks g n to g n + n - 1, one chunk per node. With G = 1 this is the ring, with n = 1 direct.
class Hierarchical final : public EvenSchedule {
 public:
  Hierarchical(int nodes, int local_ranks)
      : EvenSchedule("hierarchical", nodes * local_ranks, nodes * local_ranks,
                     (local_ranks > 1 ? 2 : 0) + 2 * (nodes - 1)),
        nodes_(nodes),
        local_ranks_(local_ranks) {}

  void Round(int rank, int round, std::vector<Transfer>& transfers) const override {
    transfers.clear();
    const int ring_round = local_ranks_ > 1 ? round - 1 : round;
    if (ring_round >= 0 && ring_round < 2 * (nodes_ - 1)) {
      return AllReduceBetweenNodes(rank, ring_round, transfers);
    }
    WithinNode(rank, /*reduce=*/ring_round < 0, transfers);
  }

  int symmetry_class(int) const override { return 0; }
  int symmetry_period() const override { return local_ranks_; }

 private:
  // `reduce`: each rank of the node gets the sum of its own shard; otherwise all ranks get all shards.
  void WithinNode(int rank, bool reduce, std::vector<Transfer>& transfers) const {
    const int own = rank % local_ranks_, node = rank - own;  // the node's first rank
    for (int step = 1; step < local_ranks_; ++step) {
      const int peer = (own + step) % local_ranks_;
      transfers.push_back({TransferKind::kSend, node + peer, (reduce ? peer : own) * nodes_, nodes_});
    }
    const TransferKind receive = reduce ? TransferKind::kReceiveAdd : TransferKind::kReceive;
    for (int peer = 0; peer < local_ranks_; ++peer) {
      if (peer == own) continue;
      transfers.push_back({receive, node + peer, (reduce ? own : peer) * nodes_, nodes_});
    }
  }

  // As in ring.cc, on the shard's chunks.
  void AllReduceBetweenNodes(int rank, int round, std::vector<Transfer>& transfers) const {
    const int shard = rank % local_ranks_ * nodes_;
    const int sent = Wrap(rank / local_ranks_ - round, nodes_);
    transfers.push_back({TransferKind::kSend, Wrap(rank + local_ranks_, ranks()), shard + sent, 1});
    transfers.push_back({round < nodes_ - 1 ? TransferKind::kReceiveAdd : TransferKind::kReceive,
                         Wrap(rank - local_ranks_, ranks()), shard + Wrap(sent - 1, nodes_), 1});
  }

  const int nodes_;
  const int local_ranks_;
};

}  // namespace

std::unique_ptr<Schedule> MakeHierarchical(Collective collective, const ScheduleShape& shape) {
  if (collective != Collective::kAllReduce) return nullptr;
  return std::make_unique<Hierarchical>(shape.ranks / shape.ranks_per_node, shape.ranks_per_node);
}

}  // namespace psring
