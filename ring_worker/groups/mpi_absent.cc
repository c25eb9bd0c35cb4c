// Compiled if the library was not found.
#include "ring_worker/groups/groups.h"

namespace psring {

BackendRow MpiBackend() {
  return {.name = "mpi",
          .missing = "install libopenmpi-dev and openmpi-bin (or mpich), then build again: ./run build"};
}

}  // namespace psring
