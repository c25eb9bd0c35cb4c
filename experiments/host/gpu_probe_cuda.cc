#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "experiments/host/gpu_probe.h"

namespace psring {

absl::StatusOr<std::vector<std::string>> FindGpus() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    return absl::UnavailableError("no NVIDIA driver, or a driver older than this build's CUDA");
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
