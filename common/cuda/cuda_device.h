// GPUs. CMake compiles the implementation if it finds CUDA, otherwise cuda_absent.cc.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/device/device.h"

namespace psring {

// The number of GPUs that this build can train on. 0 without CUDA, without a driver or without a device.
int CudaDeviceCount();

// GPU `index`. FailedPrecondition names what is missing: CUDA in this build, the driver, a recent enough
// driver (both versions), the device (how many there are), or kernels for this GPU in this build.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int index);

// Memory that processes of one host share (CUDA IPC).

// A printable handle with which another process of this host opens all of `memory`, which `device` has
// allocated. The memory must not be freed while it is open elsewhere. FailedPrecondition: not a GPU's. Errors
// are CUDA's.
absl::StatusOr<std::string> ExportMemory(Device& device, const Buffer& memory);

// The memory of another process's `handle`, `bytes` long, on the same GPU or on one that `device` reaches
// directly; closed with its last owner. Streams of different processes are not ordered: synchronize before
// handing memory over.
absl::StatusOr<Buffer> ImportMemory(Device& device, const std::string& handle, size_t bytes);

}  // namespace psring
