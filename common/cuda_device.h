// The door to GPUs. CMake compiles the implementation where CUDA was found, and cuda_device_absent.cc
// otherwise.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/device.h"
#include "common/ops.h"

namespace psring {

// How many GPUs this build can train on, here and now. 0 without CUDA, without a driver or without a device.
int CudaDeviceCount();

// GPU `index`. FailedPrecondition says what is missing: no CUDA in this build, no driver, a driver that is
// too old (both versions), no such device (how many there are), a GPU that this build has no kernels for.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int index);

// The ops of `device`, which must be a GPU. FailedPrecondition where cuBLASLt is not found, with where it was
// looked for.
absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(Device& device);

// The same without matrix products, and so without cuBLASLt.
absl::StatusOr<std::unique_ptr<Ops>> MakeCudaUpdateOps(Device& device);

}  // namespace psring
