// The wall clock, which anybody may set at any time: only for display, file names and the validity of
// certificates. What is waited for or measured uses deadline.h.
#pragma once

#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace psring {

inline absl::Time WallNow() { return absl::Now(); }

// In UTC: "2026-11-28T09:30:00Z".
inline std::string Iso8601(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

}  // namespace psring
