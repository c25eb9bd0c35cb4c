// The part of a GpuMath that does not depend on the matrix library: work in a stream's order, and kernels on
// that stream.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <utility>

#include "common/base/check.h"
#include "common/cuda/cuda_kernels.h"
#include "common/cuda/cuda_stream.h"
#include "common/cuda_ops/gpu_ops.h"

namespace psring {

class CudaLauncher : public GpuMath {
 public:
  // `stream` belongs to a CUDA device.
  void Enqueue(Stream& stream, const char* what, std::function<absl::Status()> work) override {
    CudaStream* const cuda = CudaStream::From(stream);
    PSRING_CHECK(cuda != nullptr);
    cuda->Enqueue(what, [this, work = std::move(work)](cudaStream_t queue) {
      queue_ = queue;
      return work();
    });
  }
  absl::Status Launch(size_t count, const gpu::Kernel& kernel) override {
    return CudaStatus("launch", gpu::Launch(count, kernel, queue_));
  }

 protected:
  cudaStream_t queue() const { return queue_; }  // of the current work

 private:
  cudaStream_t queue_ = nullptr;
};

// Matrix products by cuBLASLt, for `device`, in `precision`. FailedPrecondition if cuBLASLt is not found.
absl::StatusOr<std::unique_ptr<GpuMath>> MakeCudaMath(Device& device, Precision precision);

}  // namespace psring
