#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/cuda/cuda_device.h"

namespace psring {

int CudaDeviceCount() { return 0; }

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int index) {
  const bool has_driver = access("/proc/driver/nvidia/version", F_OK) == 0;
  return absl::FailedPreconditionError(absl::StrCat(
      "--device cuda:", index, ": no CUDA device: this build of psring has no CUDA, and this machine has ",
      has_driver ? "an" : "no", " NVIDIA driver; use --device cpu",
      has_driver ? ", or install the CUDA toolkit and build again: ./run build" : ""));
}

absl::Status CheckCudaPrecision(const Device&, Precision) {
  return absl::FailedPreconditionError("this build of psring has no CUDA");
}

absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(Device& device, Precision precision) {
  return CheckCudaPrecision(device, precision);
}

absl::StatusOr<std::string> ConvolutionLibrary() {
  return absl::FailedPreconditionError("this build of psring has no CUDA");
}

absl::StatusOr<std::unique_ptr<Ops>> MakeCudaUpdateOps(Device& device) { return MakeCudaOps(device); }

}  // namespace psring
