#include "common/text/translate.h"
#include "ring_worker/schedules/schedules.h"

namespace psring {
namespace {

// All-to-all in N-1 rounds: in round k - 1 every rank sends one block to the rank k places after it and
// receives one from that k places before it, so that no rank gets blocks from several at once (Thakur,
// Rabenseifner & Gropp 2005, section 4.2, for any N). (N-1)/N M sent.
class Pairwise final : public EvenSchedule {
 public:
  explicit Pairwise(int ranks) : EvenSchedule("pairwise", ranks, ranks, ranks - 1) {}

  bool keeps_input() const override { return true; }

  void Round(int rank, int round, std::vector<Transfer>& transfers) const override {
    transfers.clear();
    PushExchange(rank, round + 1, ranks(), transfers);
  }

  int symmetry_class(int) const override { return 0; }
};

}  // namespace

std::unique_ptr<Schedule> MakePairwise(Collective collective, const ScheduleShape& shape) {
  if (collective != Collective::kAllToAll) return nullptr;
  return std::make_unique<Pairwise>(shape.ranks);
}

ScheduleCost PairwiseExchangeCost(int ranks, double bytes) {
  return ExchangeCost(
      /*messages=*/ranks - 1, ranks, bytes, "(N-1) a",
      TrNoop("a: at most. No round needs what another receives, so several are in flight together."));
}

}  // namespace psring
