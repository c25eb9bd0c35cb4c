// Whether ranks may compute where they do. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace psring {

// `units` as Device::unit() of every rank, by rank. FailedPrecondition where ranks share a GPU and nobody has
// said that they may; names the ranks.
absl::Status CheckSharing(const std::vector<std::string>& units, bool may_share);

// NCCL's communicators: FailedPrecondition where ranks of one process share a GPU, which only ranks of
// several processes may.
absl::Status CheckSharingInProcess(const std::vector<std::string>& units, int ranks_per_process);

}  // namespace psring
