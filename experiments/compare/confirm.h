// Asks before a comparison that takes long.
#pragma once

#include "absl/status/status.h"
#include "experiments/compare/compare.h"
#include "experiments/compare/prepare.h"
#include "experiments/plan/plan.h"

namespace psring {

// OK if the plan may start: it is short, --time_budget allows its duration, it repeats or resumes another
// run, or the user answers yes; with --dry_run always, after a note on a long plan. psring asks only in the
// foreground of a terminal, and waits at most two minutes. InvalidArgument: the plan is long, and psring did
// not ask; the message names the flags that help. Cancelled: the answer was no, or none. `spent_s`: already
// spent on preparation.
absl::Status ConfirmLongPlan(const ExperimentFlags& flags, const Prepared& prepared, double spent_s,
                             const Plan& plan, const Interrupt& interrupt, Display& display);

}  // namespace psring
