#include "common/device_factory/make_ops.h"

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cuda_ops/cuda_ops.h"

namespace psring {

absl::Status CheckPrecision(const Device& device, Precision precision) {
  if (!device.host_reads_memory()) return CheckCudaPrecision(device, precision);
  if (precision == Precision::kTf32) {
    return InvalidArgument("--precision tf32 needs a GPU (NVIDIA Ampere or newer), but this device is ",
                           device.name(), "; omit it");
  }
  if (precision == Precision::kBFloat16 && BFloat16Support() == BFloat16::kNone) {
    return InvalidArgument("--precision bfloat16 needs a CPU with AVX-512, which this device (",
                           device.name(), ") lacks, or a GPU (NVIDIA Ampere or newer); omit it");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Ops>> MakeOps(Device& device, int threads, Precision precision) {
  PSRING_RETURN_IF_ERROR(CheckPrecision(device, precision));
  if (!device.host_reads_memory()) return MakeCudaOps(device, precision);
  return MakeOneDnnOps(threads, ActivationsOf(precision));
}

absl::StatusOr<std::unique_ptr<Ops>> MakeUpdateOps(Device& device) {
  if (device.host_reads_memory()) return MakeOneDnnOps(/*threads=*/1);
  return MakeCudaUpdateOps(device);
}

}  // namespace psring
