// Applies --time_budget as a limit on a plan. Pure.
#pragma once

#include "absl/status/status.h"
#include "experiments/plan/plan.h"

namespace psring {

// Reserved in every time budget for writing the results, in s.
inline constexpr double kReportSeconds = 2;

// Shortens `plan` until it takes at most `asked.time_budget_s` less `spent_s` (of preparation) and
// kReportSeconds: first fewer steps, then fewer samples of the accuracy trainings, fewer rounds (at least
// kFewestRounds), no accuracy trainings, finally down to one round. Keeps what `asked` sets. Adds a note.
// InvalidArgument: no plan fits; the message names a sufficient time budget and flags that shorten the plan.
absl::Status FitIntoBudget(const CompareOptions& asked, const Probe& probe, int cores, double spent_s,
                           Plan& plan);

}  // namespace psring
