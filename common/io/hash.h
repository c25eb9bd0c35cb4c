#pragma once

#include <cstddef>
#include <string>

namespace psring {

// 64-bit hash of bytes, as 16 hexadecimal digits: equal weights, equal hash. Not cryptographic.
std::string HashBytes(const void* data, size_t bytes);

}  // namespace psring
