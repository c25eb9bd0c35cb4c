#include "common/ops.h"

#include "absl/strings/str_cat.h"

namespace psring {

absl::StatusOr<std::unique_ptr<Ops>> MakeOps(const Device& device, int threads) {
  if (device.name() == "cpu") return MakeOneDnnOps(threads);
  return absl::UnimplementedError(absl::StrCat("no ops for device ", device.name()));
}

}  // namespace psring
