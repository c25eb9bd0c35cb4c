// Compiled if the library was not found.
#include "ring_worker/groups/groups.h"

namespace psring {

BackendRow GlooBackend() {
  return {.name = "gloo",
          .summary = "",
          .available = false,
          .missing = "install libgloo-dev, then build again: ./run build",
          .algorithms = [](Collective) { return std::vector<std::string>(); },
          .transports = {}};
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeGlooGroup(Rendezvous&, const GroupOptions&) {
  return absl::UnimplementedError(GlooBackend().missing);
}

}  // namespace psring
