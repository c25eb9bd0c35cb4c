// What this build can measure.
#pragma once

#include <string>

namespace psring {

// As one JSON object: backends with their algorithms, and the names of collectives.
std::string DescribeJson();

}  // namespace psring
