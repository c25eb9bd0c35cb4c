// The door to GPUs. CMake compiles the implementation where CUDA was found, and cuda_device_absent.cc
// otherwise.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/device.h"

namespace psring {

// How many GPUs this build can train on, here and now. 0 without CUDA, without a driver or without a device.
int CudaDeviceCount();

// GPU `index`. Errors say what is missing: no CUDA in this build, no driver, no such device.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int index);

}  // namespace psring
