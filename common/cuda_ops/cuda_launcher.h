// The part of a GpuMath that is the same whoever multiplies: work in a stream's order, kernels on that
// stream.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

#include "common/cuda_ops/gpu_ops.h"

namespace psring {

class CudaLauncher : public GpuMath {
 public:
  // `stream` is one of a CUDA device.
  void Enqueue(Stream& stream, const char* what, std::function<absl::Status()> work) override;
  absl::Status Launch(size_t count, const gpu::Kernel& kernel) override;

 protected:
  cudaStream_t queue() const { return queue_; }  // of the work under way

 private:
  cudaStream_t queue_ = nullptr;
};

// With matrix products by cuBLASLt, for `device`, which computes in `precision`. FailedPrecondition where
// cuBLASLt is not found.
absl::StatusOr<std::unique_ptr<GpuMath>> MakeCudaMath(Device& device, Precision precision);

}  // namespace psring
