// The factories that schedule.cc lists, one algorithm per file. Null: the collective is not offered.
//
// Notation in the comments of these files: N ranks, a buffer of M bytes; "sent" is per rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ring_worker/schedules/schedule.h"

namespace psring {

std::unique_ptr<Schedule> MakeRing(Collective collective, const ScheduleShape& shape);
std::unique_ptr<Schedule> MakeStar(Collective collective, const ScheduleShape& shape);
std::unique_ptr<Schedule> MakeDirect(Collective collective, const ScheduleShape& shape);
std::unique_ptr<Schedule> MakeOneShot(Collective collective, const ScheduleShape& shape);
std::unique_ptr<Schedule> MakeHalvingDoubling(Collective collective, const ScheduleShape& shape);
std::unique_ptr<Schedule> MakeDoubleBinaryTree(Collective collective, const ScheduleShape& shape);
std::unique_ptr<Schedule> MakeHierarchical(Collective collective, const ScheduleShape& shape);
std::unique_ptr<Schedule> MakePairwise(Collective collective, const ScheduleShape& shape);

ScheduleCost RingCost(int ranks, double bytes);
ScheduleCost StarCost(int ranks, double bytes);
ScheduleCost DirectCost(int ranks, double bytes);
ScheduleCost HalvingDoublingCost(int ranks, double bytes);
ScheduleCost DoubleBinaryTreeCost(int ranks, double bytes);
ScheduleCost DirectExchangeCost(int ranks, double bytes);
ScheduleCost PairwiseExchangeCost(int ranks, double bytes);

// A schedule whose ranks all have the same number of rounds.
class EvenSchedule : public Schedule {
 public:
  EvenSchedule(const char* name, int ranks, int chunks, int rounds)
      : name_(name), ranks_(ranks), chunks_(chunks), rounds_(rounds) {}

  std::string name() const final { return name_; }
  int ranks() const final { return ranks_; }
  int chunks() const final { return chunks_; }
  int rounds(int) const final { return ranks_ == 1 ? 0 : rounds_; }

 private:
  const char* const name_;
  const int ranks_;
  const int chunks_;
  const int rounds_;
};

// The chunks of a schedule that cuts the buffer only if each rank has its own part.
inline int OwnParts(Collective collective, int ranks) {
  return collective == Collective::kReduceScatter || collective == Collective::kAllGather ? ranks : 1;
}

// n modulo `ranks`, for possibly negative n.
inline int Wrap(int n, int ranks) { return ((n % ranks) + ranks) % ranks; }

// Appends the exchange of an all-to-all's chunk `step`: to the rank so many places after, from that before.
inline void PushExchange(int rank, int step, int ranks, std::vector<Transfer>& transfers) {
  transfers.push_back({TransferKind::kSend, Wrap(rank + step, ranks), step, 1});
  transfers.push_back({TransferKind::kReceive, Wrap(rank - step, ranks), step, 1});
}

// Appends a transfer of all `chunks` chunks except one: up to two ranges.
inline void PushAllBut(int but, int chunks, TransferKind kind, int peer, std::vector<Transfer>& transfers) {
  if (but > 0) transfers.push_back({kind, peer, 0, but});
  if (but < chunks - 1) transfers.push_back({kind, peer, but + 1, chunks - 1 - but});
}

}  // namespace psring
