#include "common/cuda_launcher.h"

#include <utility>

#include "common/check.h"
#include "common/cuda_device.h"
#include "common/cuda_kernels.h"
#include "common/cuda_stream.h"

namespace psring {
namespace {

class CudaUpdates : public CudaLauncher {
 public:
  std::string_view name() const override { return "cuda updates"; }
  absl::Status Multiply(const MatrixProduct&) override {
    return absl::InternalError("a matrix product of ops that were made without them");
  }
};

}  // namespace

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

absl::StatusOr<std::unique_ptr<Ops>> MakeCudaUpdateOps(Device& device) {
  return MakeGpuOps(device, std::make_unique<CudaUpdates>());
}

}  // namespace psring
