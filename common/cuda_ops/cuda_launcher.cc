#include "common/cuda_ops/cuda_launcher.h"

#include <utility>

#include "common/base/check.h"
#include "common/cuda/cuda_kernels.h"
#include "common/cuda/cuda_stream.h"

namespace psring {
void CudaLauncher::Enqueue(Stream& stream, const char* what, std::function<absl::Status()> work) {
  CudaStream* const cuda = CudaStream::From(stream);
  PSRING_CHECK(cuda != nullptr);
  cuda->Enqueue(what, [this, work = std::move(work)](cudaStream_t queue) {
    queue_ = queue;
    return work();
  });
}

absl::Status CudaLauncher::Launch(size_t count, const gpu::Kernel& kernel) {
  return CudaStatus("launch", gpu::Launch(count, kernel, queue_));
}

}  // namespace psring
