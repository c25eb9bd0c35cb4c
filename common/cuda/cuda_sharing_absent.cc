#include "absl/strings/str_cat.h"
#include "common/cuda/cuda_sharing.h"

namespace psring {

absl::StatusOr<std::string> ExportMemory(Device& device, const Buffer&) {
  return absl::FailedPreconditionError(absl::StrCat(device.name(), " is not a GPU"));
}

absl::StatusOr<Buffer> ImportMemory(Device& device, const std::string&, size_t) {
  return absl::FailedPreconditionError(absl::StrCat(device.name(), " is not a GPU"));
}

}  // namespace psring
