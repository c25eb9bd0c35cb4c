// Bytes that an interface of this machine sends, with headers, from all processes.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace psring {

// Bytes that the network interface has sent so far, as counted by the kernel, in this process's network
// namespace. Data that is split into frames later (segmentation offload) counts with one header. NotFound
// lists the interfaces.
absl::StatusOr<int64_t> InterfaceTxBytes(const std::string& interface);

// The same from the text of /proc/net/dev. Pure.
absl::StatusOr<int64_t> InterfaceTxBytesOf(const std::string& proc_net_dev, const std::string& interface);

}  // namespace psring
