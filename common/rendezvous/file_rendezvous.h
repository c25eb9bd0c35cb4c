// A rendezvous whose store is a file: no port, no hosting process. Used by rendezvous.cc only.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/rendezvous/rendezvous.h"

namespace psring {

// "host:pid" of this process.
std::string ProcessName();

// Joins as `rank` (-1: not a rank) in `options.file`. Waits poll the file. The last process to leave removes
// it.
absl::StatusOr<std::unique_ptr<Rendezvous>> EnterFile(const RendezvousOptions& options, int rank);

}  // namespace psring
