// Sizes as nccl-tests writes them: "4096", "4K", "1.5M", "2G", binary.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace psring {

// A whole number of bytes, at most 2^40; otherwise InvalidArgument. K, M and G may be lower-case and may be
// followed by B or iB: "4KB" and "4 KiB" are "4K".
absl::StatusOr<uint64_t> ParseByteSize(const std::string& text);

// "4K", "1.5M", "1000": the shortest text that ParseByteSize reads back as the same number.
std::string ByteSizeText(uint64_t bytes);

}  // namespace psring
