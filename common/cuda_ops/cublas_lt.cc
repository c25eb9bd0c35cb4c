#include "common/cuda_ops/cublas_lt.h"

#include "common/base/check.h"
#include "common/base/dynamic_library.h"
#include "common/base/errors.h"

// PSRING_CUDA_LIBRARIES comes from CMake: the folder in which the build found CUDA.

namespace psring {

absl::Status CublasLt::ToStatus(absl::string_view call, cublasStatus_t status) const {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return Internal(call, ": ", GetStatusString(status));
}

absl::StatusOr<CublasLt> LoadCublasLt() {
  const std::string name = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  const absl::StatusOr<DynamicLibrary> library =
      DynamicLibrary::Open({name, absl::StrCat(PSRING_CUDA_LIBRARIES, "/", name)});
  if (!library.ok()) {
    return FailedPrecondition("cuBLASLt, which computes on GPUs, was not found: ", library.status().message(),
                              "; install the CUDA toolkit ", CUBLAS_VER_MAJOR,
                              " or pip's nvidia-cublas, and put the folder of ", name,
                              " into LD_LIBRARY_PATH");
  }
  CublasLt f;
#define BIND(name) PSRING_RETURN_IF_ERROR(library->Bind("cublasLt" #name, f.name));
  PSRING_CUBLASLT_FUNCTIONS(BIND)
#undef BIND
  return f;
}

}  // namespace psring
