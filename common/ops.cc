#include "common/ops.h"

#include "common/cuda_device.h"

namespace psring {

absl::StatusOr<std::unique_ptr<Ops>> MakeOps(Device& device, int threads) {
  if (device.host_reads_memory()) return MakeOneDnnOps(threads);
  return MakeCudaOps(device);
}

}  // namespace psring
