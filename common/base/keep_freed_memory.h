#pragma once

#include <malloc.h>

namespace psring {

// Makes malloc keep freed memory, for the entire process: returning it to the kernel after every message
// costs more in page faults than the network does.
inline void KeepFreedMemory() {
  constexpr int kLarge = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kLarge);
  mallopt(M_TRIM_THRESHOLD, kLarge);
  mallopt(M_TOP_PAD, 64 << 20);
}

}  // namespace psring
