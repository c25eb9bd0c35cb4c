// Checks which ranks share a GPU. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace psring {

// `units`: Device::unit() of every rank, by rank. FailedPrecondition names ranks that share a GPU without
// --oversubscribe.
absl::Status CheckSharing(const std::vector<std::string>& units, bool may_share);

// For NCCL. FailedPrecondition: ranks of one process share a GPU, which NCCL permits only to ranks of
// different processes.
absl::Status CheckSharingInProcess(const std::vector<std::string>& units, int ranks_per_process);

}  // namespace psring
