// --time_budget as a limit: makes a plan fit, or says what would. Pure.
#pragma once

#include "absl/status/status.h"
#include "experiments/plan/plan.h"

namespace psring {

// For writing the results, in s: part of every time budget.
inline constexpr double kReportSeconds = 2;

// Shortens `plan` until it takes at most `asked.time_budget_s` less `spent_s` (of preparation) and
// kReportSeconds: fewer steps, fewer samples of the accuracy trainings, fewer rounds, then no accuracy
// trainings; what `asked` sets is kept. Adds a note about it. InvalidArgument: nothing fits; names a time
// budget and flags that do.
absl::Status FitIntoBudget(const CompareOptions& asked, const Probe& probe, int cores, double spent_s,
                           Plan& plan);

}  // namespace psring
