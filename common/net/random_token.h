// Random values from the kernel, which other processes cannot guess. Not reproducible: see random.h.
#pragma once

#include <sys/random.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/check.h"

namespace psring {

inline uint64_t KernelRandom() {
  uint64_t value = 0;
  ssize_t read = 0;
  do {  // fails only if a signal arrives before the kernel's generator is ready
    read = getrandom(&value, sizeof value, 0);
  } while (read < 0 && errno == EINTR);
  PSRING_CHECK(read == sizeof value);
  return value;
}

// Lower-case hexadecimal digits.
inline std::string RandomToken(size_t digits) {
  std::string token;
  for (uint64_t bits = 0; token.size() < digits; bits >>= 4) {
    if (token.size() % 16 == 0) bits = KernelRandom();
    token += "0123456789abcdef"[bits % 16];
  }
  return token;
}

}  // namespace psring
