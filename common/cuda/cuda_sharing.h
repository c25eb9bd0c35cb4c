// Memory of a GPU that processes of one host share (CUDA IPC). CMake compiles the implementation where CUDA
// was found, and cuda_sharing_absent.cc otherwise.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "common/device/device.h"

namespace psring {

// With what another process of this host opens `memory`, all of it, which `device` has allocated: printable.
// It must not be freed while somebody has it open. FailedPrecondition: not a GPU's. Errors are CUDA's.
absl::StatusOr<std::string> ExportMemory(Device& device, const Buffer& memory);

// The memory behind `handle` of another process, `bytes` long, of the same GPU or of one that `device`
// reaches directly; given back with its last owner. What a stream of this process does with it is in no order
// with the other's streams: whoever hands memory over waits for its own work first.
absl::StatusOr<Buffer> ImportMemory(Device& device, const std::string& handle, size_t bytes);

}  // namespace psring
