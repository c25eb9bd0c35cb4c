// Durations as users write them: "90s", "10 min", "1h30m", "0.5 ms".
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"

namespace psring {

// A sequence of plain decimal numbers, each with a unit from ns to d: "10m", "10 min", "2 hours", "1h 30m".
// Empty: it is none, or a number without a unit.
std::optional<absl::Duration> ParseDurationText(const std::string& text);

}  // namespace psring
