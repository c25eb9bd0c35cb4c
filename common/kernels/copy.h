// Copies that do not fill the caches.
#pragma once

#include <cstddef>
#include <cstring>

namespace psring::cpu {

// Like memcpy, but the written memory bypasses the caches: faster for results that are larger than the caches
// and not read again soon, because the processor neither reads the lines that it overwrites nor evicts others
// for them. Other threads see the copy as they see one of memcpy. Without such instructions it is memcpy.
void CopyPastCaches(void* to, const void* from, size_t bytes);

// CopyPastCaches or memcpy.
inline void Copy(void* to, const void* from, size_t bytes, bool pass_caches) {
  if (bytes == 0) return;
  if (pass_caches) {
    CopyPastCaches(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace psring::cpu
