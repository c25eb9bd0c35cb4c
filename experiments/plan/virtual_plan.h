// Plans a comparison in simulated time. It consists of trainings only, because step times are given. Pure.
#pragma once

#include "experiments/plan/plan.h"

namespace psring {

// Checks what a virtual clock requires. `options` must have passed CheckCompareOptions.
absl::Status CheckVirtualOptions(const CompareOptions& options, const Catalog& catalog);

// `cost` holds the trainings, one of each per round; `single` is added as the reference.
absl::StatusOr<Plan> MakeVirtualPlan(const CompareOptions& options, const Catalog& catalog,
                                     const Probe& probe, int cores);

}  // namespace psring
