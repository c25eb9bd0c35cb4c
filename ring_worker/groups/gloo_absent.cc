// Compiled if the library was not found.
#include "ring_worker/groups/groups.h"

namespace psring {

BackendRow GlooBackend() {
  return {.name = "gloo", .missing = "install libgloo-dev, then build again: ./run build"};
}

}  // namespace psring
