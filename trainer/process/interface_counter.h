// What really leaves this process's machine, headers and all, whoever sends it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace psring {

// Bytes that the network interface has sent so far, by the kernel's count, in this process's own network
// namespace. What the card or the kernel cuts into frames later counts with one header. NotFound names the
// interfaces that there are.
absl::StatusOr<int64_t> InterfaceTxBytes(const std::string& interface);

// The same from the text of /proc/net/dev. Pure.
absl::StatusOr<int64_t> InterfaceTxBytesOf(const std::string& proc_net_dev, const std::string& interface);

}  // namespace psring
