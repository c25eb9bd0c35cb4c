// Describes a plan for users; formats and parses durations. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "experiments/design/plan.h"

namespace psring {

std::string DescribePlan(const Plan& plan);

// "5 rounds".
std::string RoundsText(int rounds);

// What speeds and budgets count: "samples", or the "tokens" of texts.
std::string UnitOf(bool reads_text);

// "2m50s", "12s".
std::string HumanSeconds(double seconds);

// Seconds, of "180", "180s", "3m", "1h" or "1m30s".
absl::StatusOr<double> ParseSeconds(const std::string& text);

}  // namespace psring
