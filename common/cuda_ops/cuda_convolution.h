// Convolutions by a library of their own. CMake compiles cudnn_convolution.cc where cuDNN's headers were
// found, and cudnn_convolution_absent.cc otherwise.
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

  // Enqueues it on `stream`. False: the library has nothing for this shape and type, and nothing was done.
  // The same call gives the same bits, on every GPU of one kind: algorithms that add in no fixed order are
  // never chosen, and none is chosen by trying how long it takes.
  virtual absl::StatusOr<bool> Run(const Convolution& convolution, cudaStream_t stream) = 0;
};

// On `device`, which is the calling thread's. FailedPrecondition: this
// build or this machine has none, and why.
absl::StatusOr<std::unique_ptr<CudaConvolution>> MakeCudaConvolution(Device& device, Precision precision);

}  // namespace psring
