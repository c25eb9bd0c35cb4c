// Applies --time_budget as a limit on a plan. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "experiments/design/plan.h"

namespace psring {

// Reserved in every time budget for writing the results, in s.
inline constexpr double kReportSeconds = 2;

// A comparison that takes longer does not start unless the user confirms it or gives --time_budget.
inline constexpr double kMaxUnaskedSeconds = 600;

// Says how long `plan` takes, and which flags start or shorten it: a --time_budget for all of it, one of
// kMaxUnaskedSeconds if that is enough for a shorter plan, and --workload if the model has recorded times.
std::string LongPlanAdvice(const CompareOptions& asked, const Probe& probe, int cores, double spent_s,
                           const Plan& plan);

// Shortens `plan` until it takes at most `asked.time_budget_s` less `spent_s` (of preparation) and
// kReportSeconds: first fewer steps, then fewer samples of the accuracy trainings, fewer rounds (at least
// kFewestRounds), no accuracy trainings, finally down to one round. Keeps what `asked` sets. Adds a note.
// InvalidArgument: no plan fits; the message names a sufficient time budget and flags that shorten the plan.
absl::Status FitIntoBudget(const CompareOptions& asked, const Probe& probe, int cores, double spent_s,
                           Plan& plan);

}  // namespace psring
