// cuDNN's functions, from the library that is loaded on first use: see dynamic_library.h.
#pragma once

#include <cudnn.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psring {

// The functions that psring calls, by our names.
// clang-format off
#define PSRING_CUDNN_FUNCTIONS(F) \
  F(GetVersion, cudnnGetVersion) F(GetErrorString, cudnnGetErrorString) \
  F(Create, cudnnCreate) F(Destroy, cudnnDestroy) \
  F(SetStream, cudnnSetStream) F(CreateTensor, cudnnCreateTensorDescriptor) \
  F(DestroyTensor, cudnnDestroyTensorDescriptor) F(SetTensor4d, cudnnSetTensor4dDescriptor) \
  F(CreateFilter, cudnnCreateFilterDescriptor) F(DestroyFilter, cudnnDestroyFilterDescriptor) \
  F(SetFilter4d, cudnnSetFilter4dDescriptor) F(CreateActivation, cudnnCreateActivationDescriptor) \
  F(DestroyActivation, cudnnDestroyActivationDescriptor) F(SetActivation, cudnnSetActivationDescriptor) \
  F(CreateConvolution, cudnnCreateConvolutionDescriptor) \
  F(DestroyConvolution, cudnnDestroyConvolutionDescriptor) \
  F(SetConvolution2d, cudnnSetConvolution2dDescriptor) \
  F(SetConvolutionMathType, cudnnSetConvolutionMathType) \
  F(GetForwardAlgorithm, cudnnGetConvolutionForwardAlgorithm_v7) \
  F(GetBackwardDataAlgorithm, cudnnGetConvolutionBackwardDataAlgorithm_v7) \
  F(BiasActivationForward, cudnnConvolutionBiasActivationForward) \
  F(BackwardData, cudnnConvolutionBackwardData)
// clang-format on

struct Cudnn {
#define DECLARE(name, symbol) decltype(symbol)* name;
  PSRING_CUDNN_FUNCTIONS(DECLARE)
#undef DECLARE

  std::string version;  // "9.19.0"

  absl::Status ToStatus(absl::string_view call, cudnnStatus_t status) const;
};

// FailedPrecondition says where the library was searched for.
absl::StatusOr<Cudnn> LoadCudnn();

}  // namespace psring
