// Compiled if the library was not found.
#include "ring_worker/groups/groups.h"

namespace psring {

BackendRow MpiBackend() {
  return {.name = "mpi",
          .summary = "",
          .available = false,
          .missing = "install libopenmpi-dev and openmpi-bin (or mpich), then build again: ./run build",
          .algorithms = [](Collective) { return std::vector<std::string>(); },
          .transports = {}};
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeMpiGroup(Rendezvous&, const GroupOptions&) {
  return absl::UnimplementedError(MpiBackend().missing);
}

}  // namespace psring
