// A plan in words, and times as people read and write them. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "experiments/plan/plan.h"
#include "experiments/texts/phrase.h"

namespace psring {

// The plan for people, some lines.
std::string DescribePlan(const Plan& plan, Language language = Language::kEnglish);

// "5 rounds".
std::string RoundsText(int rounds, Language language);

// "2m50s", "12s".
std::string HumanSeconds(double seconds);

// "180", "180s", "3m", "1h", "1m30s": seconds.
absl::StatusOr<double> ParseSeconds(const std::string& text);

}  // namespace psring
