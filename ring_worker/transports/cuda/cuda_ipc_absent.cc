// Compiled without CUDA: no rank of such a build has a GPU.
#include <algorithm>

#include "common/base/check.h"
#include "ring_worker/transports/cuda/cuda_ipc.h"

namespace psring {

absl::StatusOr<GpuReach> FindGpuReach(Rendezvous& rendezvous, int, const std::string&) {
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> cards, rendezvous.Exchange("gpu reach", ""));
  // Ranks with CUDA wait for the second exchange.
  if (std::any_of(cards.begin(), cards.end(), [](const std::string& card) { return !card.empty(); })) {
    PSRING_RETURN_IF_ERROR(rendezvous.Exchange("gpu reached", "").status());
  }
  return GpuReach{.why_not = "this build of psring has no CUDA"};
}

std::string ThisProcess() { return ""; }

absl::StatusOr<std::unique_ptr<Transport>> MakeCudaIpcTransport(CudaIpcParts) {
  return absl::FailedPreconditionError("this build of psring has no CUDA");
}

}  // namespace psring
