#include "common/ops.h"

#include "absl/strings/str_cat.h"
#include "common/cuda_device.h"

namespace psring {

absl::StatusOr<std::unique_ptr<Ops>> MakeOps(Device& device, int threads, DType activations) {
  const bool on_cpu = device.host_reads_memory();
  if (activations != DType::kFloat32 && (!on_cpu || BFloat16Support() == BFloat16::kNone)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--precision bfloat16 needs a CPU with AVX-512, which this device (", device.name(),
                     ") is not; leave it out"));
  }
  if (on_cpu) return MakeOneDnnOps(threads, activations);
  return MakeCudaOps(device);
}

absl::StatusOr<std::unique_ptr<Ops>> MakeUpdateOps(Device& device) {
  if (device.host_reads_memory()) return MakeOneDnnOps(/*threads=*/1);
  return MakeCudaUpdateOps(device);
}

}  // namespace psring
