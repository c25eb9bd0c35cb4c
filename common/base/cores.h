// The processor's cores that this process may run on.
#pragma once

#include <vector>

namespace psring {

// Their numbers as the kernel knows them, ascending; never empty.
std::vector<int> AllowedCores();

}  // namespace psring
