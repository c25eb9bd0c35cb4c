// How much memory a process may take without being killed for it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "common/device/device.h"

namespace psring {

// The tightest memory limit of the control groups that this process is in (versions 1 and 2), and what is
// free below it; files that the kernel can drop count as free. Nothing if no group has a limit. `root` is
// prefixed to /proc and /sys.
std::optional<Device::Memory> ControlGroupMemory(const std::string& root = "");

// The part of the device's free memory that one allocation plan may use: an eighth stays for messages and
// other processes. 0 if the device cannot tell.
size_t UsableMemory(const Device& device);

}  // namespace psring
