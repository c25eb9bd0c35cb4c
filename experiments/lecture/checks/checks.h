// Checks solutions of the exercises, `ring` with the checker of psring's own schedules and `ssp` against the
// waiting rule of its servers. Results are in the Test Anything Protocol, version 13, which graders and CI
// systems read. Pure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "experiments/lecture/exercises/ring.h"
#include "experiments/lecture/exercises/ssp.h"

namespace psring {

struct TapPoint {
  std::string name;     // what was checked
  std::string failure;  // what is wrong, in words; empty: it passed
  std::string hint;     // at a failure, may be empty
};

bool AllPassed(const std::vector<TapPoint>& points);
// The plan, a line "ok 1 - NAME" or "not ok 1 - FAILURE" for each point, and lines "# hint: HINT".
std::string TapText(const std::vector<TapPoint>& points);

using RingSolution = std::function<void(int ranks, int rank, std::vector<RingRound>& rounds)>;

// For several numbers of ranks: as few rounds as possible, only neighbors, and CheckSchedule.
std::vector<TapPoint> CheckRing(const RingSolution& solution);

using SspSolution = std::function<bool(const JobState& job, int worker)>;

// For several small jobs, in every order of pushes: a worker continues exactly when psring's server
// (Consistency) answers it. The failure is that of a shortest order.
std::vector<TapPoint> CheckSsp(const SspSolution& solution);

}  // namespace psring
