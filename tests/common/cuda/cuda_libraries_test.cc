// The GPU libraries of this machine have every function that psring calls.
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "common/cuda_ops/cublas_lt.h"
#include "common/cuda_ops/cuda_ops.h"

namespace psring {
namespace {

bool IsAbsent(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) && (absl::StrContains(status.message(), "was not found") ||
                                                absl::StrContains(status.message(), "this build has no"));
}

TEST(CudaLibraries, CublasLtHasAllFunctions) {
  const absl::Status found = LoadCublasLt().status();
  if (IsAbsent(found)) GTEST_SKIP() << found.message();
  EXPECT_EQ(found, absl::OkStatus());
}

TEST(CudaLibraries, CudnnHasAllFunctions) {
  const absl::StatusOr<std::string> found = ConvolutionLibrary();
  if (IsAbsent(found.status())) GTEST_SKIP() << found.status().message();
  ASSERT_EQ(found.status(), absl::OkStatus());
  EXPECT_TRUE(absl::StartsWith(*found, "cudnn ")) << *found;
}

}  // namespace
}  // namespace psring
