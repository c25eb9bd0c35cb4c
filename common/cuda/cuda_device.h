// The door to GPUs. CMake compiles the implementation where CUDA was found, and cuda_device_absent.cc
// otherwise.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/ops/ops.h"

namespace psring {

// How many GPUs this build can train on, here and now. 0 without CUDA, without a driver or without a device.
int CudaDeviceCount();

// GPU `index`. FailedPrecondition says what is missing: no CUDA in this build, no driver, a driver that is
// too old (both versions), no such device (how many there are), a GPU that this build has no kernels for.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int index);

// Whether `device`, a GPU, computes so. InvalidArgument names its architecture.
absl::Status CheckCudaPrecision(const Device& device, Precision precision);

// The ops of `device`, which must be a GPU. FailedPrecondition where cuBLASLt is not found, with where it was
// looked for; InvalidArgument: CheckCudaPrecision. Convolutions are cuDNN's where it is found.
absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(Device& device, Precision precision = Precision::kFloat32);

// The same without matrix products, and so without cuBLASLt.
absl::StatusOr<std::unique_ptr<Ops>> MakeCudaUpdateOps(Device& device);

// What convolves on this machine's GPUs: "cudnn 9.19.0". The error says why there is no such library; then
// convolutions are matrix products.
absl::StatusOr<std::string> ConvolutionLibrary();

}  // namespace psring
