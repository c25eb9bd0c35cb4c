// Lets ranks that share a clock start at the same moment.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/rendezvous/rendezvous.h"

namespace psring {

// Equal for processes that read the same monotonic clock: one running kernel and time namespace.
std::string ThisClock();

// Collective. Ranks leave a barrier one after the other, and later if their links or processors are busy. So
// ranks that share a clock agree on a moment shortly after the last one's arrival and sleep until then
// (Hunold & Carpen-Amarie 2016, "window-based synchronization"). If their clocks differ, this is only a
// barrier. Errors are those of Exchange.
absl::Status BeginTogether(Rendezvous& rendezvous, const std::string& clock = ThisClock());

}  // namespace psring
