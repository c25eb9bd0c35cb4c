// The CPU cores that this process may run on.
#pragma once

#include <vector>

namespace psring {

// Kernel numbers, ascending; never empty.
std::vector<int> AllowedCores();

}  // namespace psring
