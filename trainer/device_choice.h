// Which device a rank computes on. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace psring {

// "auto" and "cuda" become a rank's own device: ranks of a host take its `gpus` in turn; "auto" is the CPU
// where there are none. Other specs stay as they are.
std::string DeviceOfRank(const std::string& spec, int local_rank, int gpus);

// `units` as Device::unit() of every rank, by rank. FailedPrecondition where ranks share a GPU and nobody has
// said that they may; names the ranks.
absl::Status CheckSharing(const std::vector<std::string>& units, bool may_share);

}  // namespace psring
