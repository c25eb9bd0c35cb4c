// cuBLASLt's functions, from the library that is loaded on first use: see dynamic_library.h.
#pragma once

#include <cublasLt.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psring {

// The functions that psring calls.
// clang-format off
#define PSRING_CUBLASLT_FUNCTIONS(F) \
  F(Create) F(Destroy) F(GetStatusString) \
  F(Matmul) F(MatmulDescCreate) F(MatmulDescDestroy) \
  F(MatmulDescSetAttribute) F(MatrixLayoutCreate) F(MatrixLayoutDestroy) \
  F(MatmulPreferenceCreate) F(MatmulPreferenceDestroy) F(MatmulPreferenceSetAttribute) \
  F(MatmulAlgoGetHeuristic)
// clang-format on

struct CublasLt {
#define DECLARE(name) decltype(cublasLt##name)* name;
  PSRING_CUBLASLT_FUNCTIONS(DECLARE)
#undef DECLARE

  absl::Status ToStatus(absl::string_view call, cublasStatus_t status) const;
};

// FailedPrecondition says where the library was searched for, and how to install it.
absl::StatusOr<CublasLt> LoadCublasLt();

}  // namespace psring
