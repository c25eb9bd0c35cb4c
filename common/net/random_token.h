// Random values from the kernel, which other processes cannot guess. Not reproducible: see random.h.
#pragma once

#include <sys/random.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/escaping.h"
#include "common/base/check.h"

namespace psring {

// At most 256 bytes, which the kernel gives at once.
inline void FillWithRandom(void* data, size_t bytes) {
  ssize_t read = 0;
  do {  // fails only if a signal arrives before the kernel's generator is ready
    read = getrandom(data, bytes, 0);
  } while (read < 0 && errno == EINTR);
  PSRING_CHECK(read == static_cast<ssize_t>(bytes));
}

inline uint64_t KernelRandom() {
  uint64_t value = 0;
  FillWithRandom(&value, sizeof value);
  return value;
}

// Lower-case hexadecimal digits, an even number.
inline std::string RandomToken(size_t digits) {
  std::string bytes(digits / 2, 0);
  FillWithRandom(bytes.data(), bytes.size());
  return absl::BytesToHexString(bytes);
}

}  // namespace psring
