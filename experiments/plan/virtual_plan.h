// The plan of a comparison in simulated time: trainings only, because a virtual step costs what it is said to
// cost, and rounds of it would show nothing new. Pure.
#pragma once

#include "experiments/plan/plan.h"

namespace psring {

// Bad input that only a virtual clock knows. `options` must have passed CheckCompareOptions.
absl::Status CheckVirtualOptions(const CompareOptions& options, const Catalog& catalog);

// What is compared is in `cost`, a training each in every round; `single` is added as the reference.
absl::StatusOr<Plan> MakeVirtualPlan(const CompareOptions& options, const Catalog& catalog,
                                     const Probe& probe, int cores);

}  // namespace psring
