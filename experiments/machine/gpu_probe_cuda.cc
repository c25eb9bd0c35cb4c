#include <cuda_runtime_api.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "experiments/machine/machine.h"

namespace psring {

absl::StatusOr<std::vector<std::string>> FindGpus() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    const bool has_driver = access("/proc/driver/nvidia/version", F_OK) == 0;
    return absl::UnavailableError(has_driver ? "the NVIDIA driver is older than this build's CUDA"
                                             : "this machine has no NVIDIA driver");
  }
  if (error != cudaSuccess) return absl::UnavailableError(cudaGetErrorString(error));
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    names.push_back(absl::StrCat(properties.name, ", ", properties.totalGlobalMem >> 20, " MiB"));
  }
  if (names.empty()) return absl::NotFoundError("no GPU is present");
  return names;
}

}  // namespace psring
