#include "common/ops.h"

#include "absl/strings/str_cat.h"

namespace psring {

absl::StatusOr<std::unique_ptr<Ops>> MakeOps(const Device& device, int threads, DType activations) {
  if (activations != DType::kFloat32 && (device.name() != "cpu" || BFloat16Support() == BFloat16::kNone)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--precision bfloat16 needs a CPU with AVX-512, which this device (", device.name(),
                     ") is not; leave it out"));
  }
  if (device.name() == "cpu") return MakeOneDnnOps(threads, activations);
  return absl::UnimplementedError(absl::StrCat("no ops for device ", device.name()));
}

}  // namespace psring
