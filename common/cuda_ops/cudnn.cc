#include "common/cuda_ops/cudnn.h"

#include "common/base/check.h"
#include "common/base/dynamic_library.h"
#include "common/base/errors.h"

// PSRING_CUDA_LIBRARIES comes from CMake: the folder in which the build found CUDA.

namespace psring {
namespace {

// Since version 9 a minor version has two digits.
std::string VersionText(size_t code) {
  const size_t major = code >= 90000 ? code / 10000 : code / 1000;
  const size_t minor = code >= 90000 ? code / 100 % 100 : code / 100 % 10;
  return absl::StrCat(major, ".", minor, ".", code % 100);
}

}  // namespace

absl::Status Cudnn::ToStatus(absl::string_view call, cudnnStatus_t status) const {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  return Internal(call, ": ", GetErrorString(status));
}

absl::StatusOr<Cudnn> LoadCudnn() {
  const std::string name = absl::StrCat("libcudnn.so.", CUDNN_MAJOR);
  const absl::StatusOr<DynamicLibrary> library =
      DynamicLibrary::Open({name, absl::StrCat(PSRING_CUDA_LIBRARIES, "/", name)});
  if (!library.ok()) return FailedPrecondition("cuDNN was not found: ", library.status().message());
  Cudnn f;
#define BIND(name, symbol) PSRING_RETURN_IF_ERROR(library->Bind(#symbol, f.name));
  PSRING_CUDNN_FUNCTIONS(BIND)
#undef BIND
  f.version = VersionText(f.GetVersion());
  return f;
}

}  // namespace psring
