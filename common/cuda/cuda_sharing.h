// GPU memory that processes of one host share (CUDA IPC). CMake compiles the implementation if it finds CUDA,
// otherwise cuda_absent.cc.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "common/device/device.h"

namespace psring {

// A printable handle with which another process of this host opens all of `memory`, which `device` has
// allocated. The memory must not be freed while it is open elsewhere. FailedPrecondition: not a GPU's. Errors
// are CUDA's.
absl::StatusOr<std::string> ExportMemory(Device& device, const Buffer& memory);

// The memory of another process's `handle`, `bytes` long, on the same GPU or on one that `device` reaches
// directly; closed with its last owner. Streams of different processes are not ordered: synchronize before
// handing memory over.
absl::StatusOr<Buffer> ImportMemory(Device& device, const std::string& handle, size_t bytes);

}  // namespace psring
