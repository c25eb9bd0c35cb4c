// Checks a solution of the exercise `ssp` against the waiting rule of psring's servers. Pure.
#pragma once

#include <functional>
#include <vector>

#include "experiments/lecture/checks/tap.h"
#include "experiments/lecture/exercises/ssp.h"

namespace psring {

using SspSolution = std::function<bool(const JobState& job, int worker)>;

// For several small jobs, in every order of pushes: a worker continues exactly when psring's server
// (Consistency) answers it. The failure is that of a shortest order.
std::vector<TapPoint> CheckSsp(const SspSolution& solution);

}  // namespace psring
