// A rendezvous whose store is a file: no port, no process that hosts it. For rendezvous.cc alone.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/rendezvous/rendezvous.h"

namespace psring {

// "host:pid" of this process.
std::string ProcessName();

// Joins as `rank`, or as no rank where that is -1, in `options.file`. Waits look at the file again and again.
// The last one to leave removes it.
absl::StatusOr<std::unique_ptr<Rendezvous>> EnterFile(const RendezvousOptions& options, int rank);

}  // namespace psring
