#include "common/cuda_ops/cudnn.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/dynamic_library.h"

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
  return absl::InternalError(absl::StrCat(call, ": ", GetErrorString(status)));
}

absl::StatusOr<Cudnn> LoadCudnn() {
  const std::string name = absl::StrCat("libcudnn.so.", CUDNN_MAJOR);
  const absl::StatusOr<DynamicLibrary> library =
      DynamicLibrary::Open({name, absl::StrCat(PSRING_CUDA_LIBRARIES, "/", name)});
  if (!library.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("cuDNN was not found: ", library.status().message()));
  }
  Cudnn f;
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnGetVersion", f.GetVersion));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnGetErrorString", f.GetErrorString));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnCreate", f.Create));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnDestroy", f.Destroy));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnSetStream", f.SetStream));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnCreateTensorDescriptor", f.CreateTensor));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnDestroyTensorDescriptor", f.DestroyTensor));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnSetTensor4dDescriptor", f.SetTensor4d));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnCreateFilterDescriptor", f.CreateFilter));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnDestroyFilterDescriptor", f.DestroyFilter));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnSetFilter4dDescriptor", f.SetFilter4d));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnCreateActivationDescriptor", f.CreateActivation));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnDestroyActivationDescriptor", f.DestroyActivation));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnSetActivationDescriptor", f.SetActivation));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnCreateConvolutionDescriptor", f.CreateConvolution));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnDestroyConvolutionDescriptor", f.DestroyConvolution));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnSetConvolution2dDescriptor", f.SetConvolution2d));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnSetConvolutionMathType", f.SetConvolutionMathType));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnGetConvolutionForwardAlgorithm_v7", f.GetForwardAlgorithm));
  PSRING_RETURN_IF_ERROR(
      library->Bind("cudnnGetConvolutionBackwardFilterAlgorithm_v7", f.GetBackwardFilterAlgorithm));
  PSRING_RETURN_IF_ERROR(
      library->Bind("cudnnGetConvolutionBackwardDataAlgorithm_v7", f.GetBackwardDataAlgorithm));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnConvolutionBiasActivationForward", f.BiasActivationForward));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnConvolutionBackwardFilter", f.BackwardFilter));
  PSRING_RETURN_IF_ERROR(library->Bind("cudnnConvolutionBackwardData", f.BackwardData));
  f.version = VersionText(f.GetVersion());
  return f;
}

}  // namespace psring
