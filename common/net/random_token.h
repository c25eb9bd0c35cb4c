// Random values from the kernel, which other processes cannot guess. Not reproducible: see random.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace psring {

uint64_t KernelRandom();

// Lower-case hexadecimal digits.
std::string RandomToken(size_t digits);

}  // namespace psring
