// Compiled if the library was not found.
#include "ring_worker/groups/groups.h"

namespace psring {

BackendRow NcclBackend() {
  return {.name = "nccl",
          .summary = "",
          .available = false,
          .missing = "install the CUDA toolkit and libnccl-dev, then build again: ./run build",
          .algorithms = [](Collective) { return std::vector<std::string>(); },
          .transports = {}};
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeNcclGroup(Rendezvous&, const GroupOptions&) {
  return absl::UnimplementedError(NcclBackend().missing);
}

}  // namespace psring
