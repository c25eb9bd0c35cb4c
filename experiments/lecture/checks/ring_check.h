// Checks a solution of the exercise `ring` with the checker of psring's own schedules. Pure.
#pragma once

#include <functional>
#include <vector>

#include "experiments/lecture/checks/tap.h"
#include "experiments/lecture/exercises/ring.h"

namespace psring {

using RingSolution = std::function<void(int ranks, int rank, std::vector<RingRound>& rounds)>;

// For several numbers of ranks: as few rounds as possible, only neighbors, and CheckSchedule.
std::vector<TapPoint> CheckRing(const RingSolution& solution);

}  // namespace psring
