// How much memory this process can allocate before the kernel kills it or libraries abort.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/device/device.h"

namespace psring {

// The tightest memory limit of this process's control groups (versions 1 and 2) and the free memory below it;
// droppable file caches count as free. nullopt if no group has a limit. `root` is prefixed to /proc and /sys.
std::optional<Device::Memory> ControlGroupMemory(const std::string& root = "");

// The limit of this process's address space (ulimit -v). nullopt: unlimited.
std::optional<Device::Memory> AddressSpace();

// Names the limit that processes of a host share: this process, if its address space is limited; else the
// control group of ControlGroupMemory; "" without one.
std::string MemoryScope(const std::string& root = "");

// FailedPrecondition, in one line: one of psring's programs needs more address space, even without the
// buffers of a job. Libraries abort when it is exceeded, so it is checked before they start threads.
absl::Status CheckAddressSpace();

// The part of the device's free memory that one allocation plan may use; an eighth is reserved for messages
// and other processes. 0 if unknown.
size_t UsableMemory(const Device& device);

}  // namespace psring
