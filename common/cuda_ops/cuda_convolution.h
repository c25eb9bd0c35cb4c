// Convolutions by a library. CMake compiles cudnn_convolution.cc if it finds cuDNN's headers, otherwise
// cudnn_convolution_absent.cc.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/cuda_ops/gpu_ops.h"

namespace psring {

// One thread at a time, on one GPU.
class CudaConvolution {
 public:
  virtual ~CudaConvolution() = default;
  virtual const std::string& name() const = 0;  // "cudnn 9.19.0"

  // Enqueues it on `stream`. False: the library does not support this shape and type, and nothing was
  // enqueued. The same call gives the same bits on all GPUs of one kind: algorithms that add in no fixed
  // order are never chosen, and none is chosen by timing.
  virtual absl::StatusOr<bool> Run(const Convolution& convolution, cudaStream_t stream) = 0;
};

// For `device`, which must be selected. FailedPrecondition says why this build or machine has none.
absl::StatusOr<std::unique_ptr<CudaConvolution>> MakeCudaConvolution(Device& device, Precision precision);

}  // namespace psring
