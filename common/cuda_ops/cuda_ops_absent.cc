#include "common/base/errors.h"
#include "common/cuda_ops/cuda_ops.h"

namespace psring {

absl::Status CheckCudaPrecision(const Device&, Precision) {
  return FailedPrecondition("this build of psring has no CUDA");
}

absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(Device& device, Precision precision) {
  return CheckCudaPrecision(device, precision);
}

absl::StatusOr<std::unique_ptr<Ops>> MakeCudaUpdateOps(Device& device) { return MakeCudaOps(device); }

absl::StatusOr<std::string> ConvolutionLibrary() {
  return FailedPrecondition("this build of psring has no CUDA");
}

}  // namespace psring
