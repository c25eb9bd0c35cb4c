#include <bit>
#include <cmath>

#include "common/text/translate.h"
#include "ring_worker/schedules/schedules.h"

namespace psring {
namespace {

// Rabenseifner's algorithm, after Thakur, Rabenseifner & Gropp 2005. P = 2^k is the largest power of two up
// to N.
//
// Fold: of the first 2(N-P) ranks, each even one sends its values to its odd neighbor, which represents both
// from then on. The P remaining ranks have *places* 0 to P-1, in rank order. Halve, k rounds: partners whose
// places differ in one bit, the highest first, exchange and add halves of their current range; place p ends
// with the sum in block p. Double: the same rounds in reverse, and each partner sends its complete range.
// Unfold: odd ranks send their neighbors the result. The final sum of each block is formed at one place only
// and then copied, so all ranks have the same bits.
//
//   all-reduce      2k rounds, 2(P-1)/P M sent; if N > P: 2 rounds more, and M more sent by folded ranks
//   reduce-scatter  fold, halve, unfold: k rounds, (N-1)/N M sent if N = P
//   all-gather      fold, double, unfold: k rounds, (N-1)/N M sent if N = P
// All-reduce has P equal chunks. The others have N, of which a place that represents two ranks holds two.
class HalvingDoubling final : public EvenSchedule {
 public:
  HalvingDoubling(Collective collective, int ranks)
      : HalvingDoubling(collective, ranks, static_cast<int>(std::bit_floor(unsigned(ranks)))) {}

  void Round(int rank, int round, std::vector<Transfer>& transfers) const override {
    transfers.clear();
    const bool folded = rank < 2 * folded_;  // sends its values to another rank, or receives another's
    const int first_halving = folded_ > 0 ? 1 : 0;
    if (round < first_halving || round == first_halving + halvings_ + doublings_) {
      if (folded && round == 0) Fold(rank, transfers);
      if (folded && round != 0) Unfold(rank, transfers);
      return;
    }
    if (folded && rank % 2 == 0) return;
    const int place = folded ? rank / 2 : rank - folded_;
    const int step = round - first_halving;
    if (step < halvings_) {
      Exchange(place, places_ >> (step + 1), true, transfers);
    } else {
      Exchange(place, 1 << (step - halvings_), false, transfers);
    }
  }

  // With a fold, ranks wait for different peers.
  int symmetry_class(int rank) const override { return folded_ == 0 ? 0 : rank; }

 private:
  HalvingDoubling(Collective collective, int ranks, int places)
      : EvenSchedule("halving-doubling", ranks, collective == Collective::kAllReduce ? places : ranks,
                     (ranks > places ? 2 : 0) + (collective == Collective::kAllReduce ? 2 : 1) *
                                                    (std::bit_width(unsigned(places)) - 1)),
        collective_(collective),
        places_(places),
        folded_(ranks - places),
        halvings_(collective == Collective::kAllGather ? 0 : std::bit_width(unsigned(places)) - 1),
        doublings_(collective == Collective::kReduceScatter ? 0 : std::bit_width(unsigned(places)) - 1) {}

  int RankAt(int place) const { return place < folded_ ? 2 * place + 1 : place + folded_; }

  // The first chunk of a place's block; of place P: the end.
  int FirstChunk(int place) const {
    if (collective_ == Collective::kAllReduce) return place;
    return place < folded_ ? 2 * place : place + folded_;
  }

  // `bit`: the bit in which the partners' places differ. Places that agree in all higher bits work on the
  // same half.
  void Exchange(int place, int bit, bool halve, std::vector<Transfer>& transfers) const {
    const int partner = place ^ bit;
    const auto half = [&](TransferKind kind, int of) {
      const int first = of & ~(bit - 1);
      transfers.push_back(
          {kind, RankAt(partner), FirstChunk(first), FirstChunk(first + bit) - FirstChunk(first)});
    };
    half(TransferKind::kSend, halve ? partner : place);
    half(halve ? TransferKind::kReceiveAdd : TransferKind::kReceive, halve ? place : partner);
  }

  void Fold(int rank, std::vector<Transfer>& transfers) const {
    const bool gives = rank % 2 == 0;
    const int peer = rank ^ 1;
    if (collective_ == Collective::kAllGather) {
      transfers.push_back({gives ? TransferKind::kSend : TransferKind::kReceive, peer, rank & ~1, 1});
    } else {
      transfers.push_back({gives ? TransferKind::kSend : TransferKind::kReceiveAdd, peer, 0, chunks()});
    }
  }

  void Unfold(int rank, std::vector<Transfer>& transfers) const {
    const TransferKind kind = rank % 2 == 0 ? TransferKind::kReceive : TransferKind::kSend;
    const int peer = rank ^ 1;
    if (collective_ == Collective::kAllGather) return PushAllBut(rank & ~1, chunks(), kind, peer, transfers);
    if (collective_ == Collective::kAllReduce) return transfers.push_back({kind, peer, 0, chunks()});
    transfers.push_back({kind, peer, rank & ~1, 1});
  }

  const Collective collective_;
  const int places_;
  const int folded_;  // pairs of ranks that share a place
  const int halvings_;
  const int doublings_;
};

// Van de Geijn's broadcast (in the same paper): the root scatters P chunks down a binomial tree, then
// doubling as above gathers them everywhere. Places are counted from the root; the N-P ranks after the last
// place receive everything from the first places in one more round. 2k rounds, at most 2(P-1)/P M sent, or M
// more if N > P.
class ScatterGather final : public EvenSchedule {
 public:
  ScatterGather(int ranks, int root)
      : ScatterGather(ranks, root, static_cast<int>(std::bit_floor(unsigned(ranks)))) {}

  void Round(int rank, int round, std::vector<Transfer>& transfers) const override {
    transfers.clear();
    const int place = Wrap(rank - root_, ranks());
    if (round == 2 * steps_) {
      if (place >= places_)
        transfers.push_back({TransferKind::kReceive, RankAt(place - places_), 0, places_});
      const bool has_follower = place + places_ < ranks();
      if (has_follower) transfers.push_back({TransferKind::kSend, RankAt(place + places_), 0, places_});
    } else if (place >= places_) {
      return;
    } else if (round < steps_) {
      // Place p, for p a multiple of 2 * bit, holds blocks p to p + 2 * bit; it sends the upper half.
      const int bit = places_ >> (round + 1);
      if (place % (2 * bit) == 0)
        transfers.push_back({TransferKind::kSend, RankAt(place + bit), place + bit, bit});
      if (place % (2 * bit) == bit)
        transfers.push_back({TransferKind::kReceive, RankAt(place - bit), place, bit});
    } else {
      const int bit = 1 << (round - steps_);
      const int partner = place ^ bit;
      // The sender of a block keeps it.
      if (partner % (2 * bit) != 0) {
        transfers.push_back({TransferKind::kSend, RankAt(partner), place & ~(bit - 1), bit});
      }
      if (place % (2 * bit) != 0) {
        transfers.push_back({TransferKind::kReceive, RankAt(partner), partner & ~(bit - 1), bit});
      }
    }
  }

 private:
  ScatterGather(int ranks, int root, int places)
      : EvenSchedule("halving-doubling", ranks, places,
                     2 * (std::bit_width(unsigned(places)) - 1) + (ranks > places ? 1 : 0)),
        root_(root),
        places_(places),
        steps_(std::bit_width(unsigned(places)) - 1) {}

  int RankAt(int place) const { return Wrap(root_ + place, ranks()); }

  const int root_;
  const int places_;
  const int steps_;
};

}  // namespace

std::unique_ptr<Schedule> MakeHalvingDoubling(Collective collective, const ScheduleShape& shape) {
  if (collective == Collective::kAllToAll) return nullptr;
  if (collective == Collective::kBroadcast) return std::make_unique<ScatterGather>(shape.ranks, shape.root);
  return std::make_unique<HalvingDoubling>(collective, shape.ranks);
}

ScheduleCost HalvingDoublingCost(int ranks, double bytes) {
  const double n = ranks, power = std::bit_floor(static_cast<unsigned>(ranks));
  const bool folds = power < n;
  return {.terms = {2 * std::log2(power) + (folds ? 2 : 0),
                    2 * (power - 1) / power * bytes + (folds ? 2 * bytes : 0), 2 * (n - 1) * bytes,
                    (power - 1) / power * bytes + (folds ? bytes : 0)},
          .payload_bytes = LeastPayload(n, bytes),
          .latency = "2 lg N a",
          .bytes = "2(N-1)/N M/B",
          .adding = "(N-1)/N M g",
          .note = folds ? TrNoop("The formula is for powers of two. Other numbers of ranks first fold into a "
                                 "power of two, which costs about 2a + 2M/B more.")
                        : ""};
}

}  // namespace psring
