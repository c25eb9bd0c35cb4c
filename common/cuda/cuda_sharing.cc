#include "common/cuda/cuda_sharing.h"

#include <cuda_runtime_api.h>

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/cuda/cuda_context.h"

namespace psring {

absl::StatusOr<std::string> ExportMemory(Device& device, const Buffer& memory) {
  if (device.gpu() < 0) return absl::FailedPreconditionError(absl::StrCat(device.name(), " is not a GPU"));
  PSRING_RETURN_IF_ERROR(CudaStatus("cudaSetDevice", cudaSetDevice(device.gpu())));
  cudaIpcMemHandle_t handle = {};
  PSRING_RETURN_IF_ERROR(CudaStatus(absl::StrCat(device.name(), ": cudaIpcGetMemHandle"),
                                    cudaIpcGetMemHandle(&handle, memory.data())));
  return absl::WebSafeBase64Escape({handle.reserved, sizeof(handle.reserved)});
}

absl::StatusOr<Buffer> ImportMemory(Device& device, const std::string& text, size_t bytes) {
  if (device.gpu() < 0) return absl::FailedPreconditionError(absl::StrCat(device.name(), " is not a GPU"));
  cudaIpcMemHandle_t handle = {};
  std::string decoded;
  if (!absl::WebSafeBase64Unescape(text, &decoded) || decoded.size() != sizeof(handle.reserved)) {
    return absl::InvalidArgumentError("not a handle of a GPU's memory");
  }
  std::memcpy(handle.reserved, decoded.data(), sizeof(handle.reserved));
  const int gpu = device.gpu();
  PSRING_RETURN_IF_ERROR(CudaStatus("cudaSetDevice", cudaSetDevice(gpu)));
  void* data = nullptr;
  PSRING_RETURN_IF_ERROR(CudaStatus(absl::StrCat(device.name(), ": cudaIpcOpenMemHandle"),
                                    cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess)));
  return Buffer(data, bytes, [gpu](void* memory) {
    if (CudaStatus("cudaSetDevice", cudaSetDevice(gpu)).ok()) {
      (void)CudaStatus("cudaIpcCloseMemHandle", cudaIpcCloseMemHandle(memory));
    }
  });
}

}  // namespace psring
