#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "common/text/translate.h"
#include "ring_worker/schedules/schedules.h"

namespace psring {
namespace {

// Sanders, Speck & Traeff 2009. The root feeds two binary trees over the other m = N-1 ranks, each for half
// of the buffer (chunk 0 and chunk 1). No rank has children in both trees, so each rank sends at most 2 M,
// and on average as much as in a ring.
//
// A tree is built on *positions* 1 to m in order: odd positions are leaves, and the larger the power of two
// that divides a position, the higher it is in the tree. The second tree is the first over mirrored positions
// if m is even, and shifted by one if m is odd, so that interior positions of one are leaves of the other.
// Rounds follow the levels, of which there are L = floor(lg m) + 1 below the root, in both trees at once: up,
// where each rank adds its children's sums to its own value, the lower position's first, then down.
//
//   all-reduce  up and down: 2L rounds, at most 2 M sent, 2(N-1)/N M on average; the root of both trees is
//              rank 0
//   broadcast   down: L rounds, at most M sent, (N-1)/N M on average
// With one segment a round lasts as long as half of the buffer; with many segments pipelined through the
// trees, all links are busy at once. There is no reduce-scatter or all-gather, because the entire sum passes
// through the roots.
class DoubleBinaryTree final : public EvenSchedule {
 public:
  DoubleBinaryTree(Collective collective, int ranks, int root)
      : EvenSchedule("double-binary-tree", ranks, 2,
                     (collective == Collective::kAllReduce ? 2 : 1) * Levels(ranks - 1)),
        root_(root),
        positions_(ranks - 1),
        levels_(Levels(ranks - 1)),
        up_rounds_(collective == Collective::kAllReduce ? levels_ : 0) {}

  void Round(int rank, int round, std::vector<Transfer>& transfers) const override {
    transfers.clear();
    const bool up = round < up_rounds_;
    // Between this level and the one above it; the root's level is 0.
    const int level = up ? levels_ - round : round - up_rounds_ + 1;
    for (int tree = 0; tree < 2; ++tree) {
      const int position = PositionOf(tree, rank);
      const int own_level = LevelOf(position);
      if (own_level == level) {
        transfers.push_back(
            {up ? TransferKind::kSend : TransferKind::kReceive, RankAt(tree, Parent(position)), tree, 1});
      } else if (own_level == level - 1) {
        for (int child : Children(position)) {
          if (child == 0) continue;
          transfers.push_back(
              {up ? TransferKind::kReceiveAdd : TransferKind::kSend, RankAt(tree, child), tree, 1});
        }
      }
    }
  }

 private:
  static int Levels(int positions) { return std::bit_width(unsigned(positions)); }
  static int LowestBit(int position) { return position & -position; }

  // The tree over 1 to 2^L - 1 is complete. A smaller one lacks the positions above m; the child of a missing
  // position is attached to that position's nearest existing ancestor.
  int Parent(int position) const {
    const int bit = LowestBit(position);
    const int parent = (position ^ bit) | (2 * bit);
    return parent <= positions_ ? parent : position ^ bit;  // 0: the root
  }

  // 0: none.
  std::array<int, 2> Children(int position) const {
    if (position == 0) return {static_cast<int>(std::bit_floor(unsigned(positions_))), 0};
    int step = LowestBit(position) / 2;
    const int lower = step > 0 ? position - step : 0;
    while (step > 0 && position + step > positions_) step /= 2;
    return {lower, step > 0 ? position + step : 0};
  }

  int LevelOf(int position) const {
    int level = 0;
    for (; position != 0; position = Parent(position)) ++level;
    return level;
  }

  int PositionOf(int tree, int rank) const {
    const int place = Wrap(rank - root_, ranks());
    if (tree == 0 || place == 0) return place;
    return positions_ % 2 == 0 ? positions_ + 1 - place : place % positions_ + 1;
  }

  int RankAt(int tree, int position) const {
    int place = position;
    if (tree == 1 && position != 0) {
      place = positions_ % 2 == 0 ? positions_ + 1 - position : (position + positions_ - 2) % positions_ + 1;
    }
    return Wrap(root_ + place, ranks());
  }

  const int root_;
  const int positions_;
  const int levels_;
  const int up_rounds_;
};

}  // namespace

std::unique_ptr<Schedule> MakeDoubleBinaryTree(Collective collective, const ScheduleShape& shape) {
  if (collective != Collective::kAllReduce && collective != Collective::kBroadcast) return nullptr;
  const int root = collective == Collective::kBroadcast ? shape.root : 0;
  return std::make_unique<DoubleBinaryTree>(collective, shape.ranks, root);
}

ScheduleCost DoubleBinaryTreeCost(int ranks, double bytes) {
  const double n = ranks, all = 2 * (n - 1) * bytes;
  return {.terms = {2 * std::ceil(std::log2(n)), 2 * bytes, all, 0},
          .payload_bytes = LeastPayload(n, bytes),
          .latency = "2 lg N a",
          .bytes = "2 M/B",
          .adding = "0",
          .note = TrNoop(
              "The formula is for many segments in a pipeline, which keeps all links busy. In one piece, as "
              "shown here, the two trees cost more.")};
}

}  // namespace psring
