#include "ring_worker/transports/add_floats.h"

namespace psring {

void AddFloats(float* __restrict to, const float* __restrict from, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] += from[i];
}

}  // namespace psring
