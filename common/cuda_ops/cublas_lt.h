// cuBLASLt's functions, from the library that is loaded on first use: see dynamic_library.h.
#pragma once

#include <cublasLt.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psring {

struct CublasLt {
  decltype(cublasLtCreate)* Create;
  decltype(cublasLtDestroy)* Destroy;
  decltype(cublasLtGetStatusString)* GetStatusString;
  decltype(cublasLtMatmul)* Matmul;
  decltype(cublasLtMatmulDescCreate)* MatmulDescCreate;
  decltype(cublasLtMatmulDescDestroy)* MatmulDescDestroy;
  decltype(cublasLtMatmulDescSetAttribute)* MatmulDescSetAttribute;
  decltype(cublasLtMatrixLayoutCreate)* MatrixLayoutCreate;
  decltype(cublasLtMatrixLayoutDestroy)* MatrixLayoutDestroy;
  decltype(cublasLtMatmulPreferenceCreate)* MatmulPreferenceCreate;
  decltype(cublasLtMatmulPreferenceDestroy)* MatmulPreferenceDestroy;
  decltype(cublasLtMatmulPreferenceSetAttribute)* MatmulPreferenceSetAttribute;
  decltype(cublasLtMatmulAlgoGetHeuristic)* MatmulAlgoGetHeuristic;

  absl::Status ToStatus(absl::string_view call, cublasStatus_t status) const;
};

// FailedPrecondition says where the library was searched for, and how to install it.
absl::StatusOr<CublasLt> LoadCublasLt();

}  // namespace psring
