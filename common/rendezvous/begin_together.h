// Ranks that begin something at one moment, because their clocks are one.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/rendezvous/rendezvous.h"

namespace psring {

// Who shares this name reads one monotonic clock: this boot of this kernel, as this time namespace sees it.
std::string ThisClock();

// Every rank calls it, and leaves with all others. Leaving a barrier is no beginning together: its word
// reaches one rank after the other, and later those whose links or processors are busy. So where all ranks
// have one clock they agree on a moment a little later than the last one's arrival and sleep until then
// (Hunold & Carpen-Amarie 2016, "window-based synchronization"). Elsewhere it is a barrier. Errors are the
// rendezvous'.
absl::Status BeginTogether(Rendezvous& rendezvous, const std::string& clock = ThisClock());

}  // namespace psring
