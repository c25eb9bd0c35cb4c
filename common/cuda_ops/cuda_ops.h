// The ops of GPUs. CMake compiles the implementation if it finds CUDA, otherwise cuda_ops_absent.cc.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/ops/ops.h"

namespace psring {

// Whether `device`, a GPU, supports the precision. InvalidArgument names its architecture.
absl::Status CheckCudaPrecision(const Device& device, Precision precision);

// The ops of `device`, which must be a GPU. FailedPrecondition if cuBLASLt is not found, with the places
// searched; InvalidArgument: see CheckCudaPrecision. Convolutions use cuDNN if it is found.
absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(Device& device, Precision precision = Precision::kFloat32);

// Ops without matrix products, which do not need cuBLASLt.
absl::StatusOr<std::unique_ptr<Ops>> MakeCudaUpdateOps(Device& device);

// The convolution library of this machine's GPUs: "cudnn 9.19.0". An error says why there is none;
// convolutions are then matrix products.
absl::StatusOr<std::string> ConvolutionLibrary();

}  // namespace psring
