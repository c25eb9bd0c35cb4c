// Compiled if the library was not found.
#include "ring_worker/groups/groups.h"

namespace psring {

BackendRow NcclBackend() {
  return {.name = "nccl",
          .missing = "install the CUDA toolkit and libnccl-dev, then build again: ./run build"};
}

}  // namespace psring
