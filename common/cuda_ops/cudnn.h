// cuDNN's functions, from the library that is loaded on first use: see dynamic_library.h.
#pragma once

#include <cudnn.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psring {

struct Cudnn {
  decltype(cudnnGetVersion)* GetVersion;
  decltype(cudnnGetErrorString)* GetErrorString;
  decltype(cudnnCreate)* Create;
  decltype(cudnnDestroy)* Destroy;
  decltype(cudnnSetStream)* SetStream;
  decltype(cudnnCreateTensorDescriptor)* CreateTensor;
  decltype(cudnnDestroyTensorDescriptor)* DestroyTensor;
  decltype(cudnnSetTensor4dDescriptor)* SetTensor4d;
  decltype(cudnnCreateFilterDescriptor)* CreateFilter;
  decltype(cudnnDestroyFilterDescriptor)* DestroyFilter;
  decltype(cudnnSetFilter4dDescriptor)* SetFilter4d;
  decltype(cudnnCreateActivationDescriptor)* CreateActivation;
  decltype(cudnnDestroyActivationDescriptor)* DestroyActivation;
  decltype(cudnnSetActivationDescriptor)* SetActivation;
  decltype(cudnnCreateConvolutionDescriptor)* CreateConvolution;
  decltype(cudnnDestroyConvolutionDescriptor)* DestroyConvolution;
  decltype(cudnnSetConvolution2dDescriptor)* SetConvolution2d;
  decltype(cudnnSetConvolutionMathType)* SetConvolutionMathType;
  decltype(cudnnGetConvolutionForwardAlgorithm_v7)* GetForwardAlgorithm;
  decltype(cudnnGetConvolutionBackwardFilterAlgorithm_v7)* GetBackwardFilterAlgorithm;
  decltype(cudnnGetConvolutionBackwardDataAlgorithm_v7)* GetBackwardDataAlgorithm;
  decltype(cudnnConvolutionBiasActivationForward)* BiasActivationForward;
  decltype(cudnnConvolutionBackwardFilter)* BackwardFilter;
  decltype(cudnnConvolutionBackwardData)* BackwardData;

  std::string version;  // "9.19.0"

  absl::Status ToStatus(absl::string_view call, cudnnStatus_t status) const;
};

// FailedPrecondition says where the library was searched for.
absl::StatusOr<Cudnn> LoadCudnn();

}  // namespace psring
