// The ops of a GPU, and whether it supports the requested precision.
#include "common/cuda_ops/cuda_ops.h"

#include <cuda_runtime_api.h>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cuda/cuda_context.h"
#include "common/cuda_ops/cuda_launcher.h"

namespace psring {
namespace {

class CudaUpdates : public CudaLauncher {
 public:
  std::string_view name() const override { return "cuda updates"; }
  absl::Status Multiply(const MatrixProduct&) override {
    return Internal("a matrix product of ops that were made without them");
  }
};

}  // namespace

// Ampere (compute capability 8.0) introduced both.
absl::Status CheckCudaPrecision(const Device& device, Precision precision) {
  if (precision == Precision::kFloat32) return absl::OkStatus();
  int major = 0, minor = 0;
  for (const auto& [attribute, value] :
       {std::pair{cudaDevAttrComputeCapabilityMajor, &major}, {cudaDevAttrComputeCapabilityMinor, &minor}}) {
    PSRING_RETURN_IF_ERROR(CudaStatus(absl::StrCat(device.name(), ": cudaDeviceGetAttribute"),
                                      cudaDeviceGetAttribute(value, attribute, device.gpu())));
  }
  if (major >= 8) return absl::OkStatus();
  return InvalidArgument("--precision ", precision == Precision::kTf32 ? "tf32" : "bfloat16",
                         " needs a GPU of compute capability 8.0 (Ampere) or newer, and ", device.name(),
                         " is of ", major, ".", minor, "; omit it");
}

absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(Device& device, Precision precision) {
  PSRING_RETURN_IF_ERROR(CheckCudaPrecision(device, precision));
  PSRING_ASSIGN_OR_RETURN(std::unique_ptr<GpuMath> math, MakeCudaMath(device, precision));
  return MakeGpuOps(device, std::move(math), {.activations = ActivationsOf(precision)});
}

absl::StatusOr<std::unique_ptr<Ops>> MakeCudaUpdateOps(Device& device) {
  return MakeGpuOps(device, std::make_unique<CudaUpdates>());
}

}  // namespace psring
