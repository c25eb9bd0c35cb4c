#pragma once

#include <cstddef>

namespace psring {

// to[i] += from[i]. The two do not overlap.
void AddFloats(float* to, const float* from, size_t count);

}  // namespace psring
