#include "common/base/keep_freed_memory.h"

#include <malloc.h>

namespace psring {

void KeepFreedMemory() {
  constexpr int kLarge = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kLarge);
  mallopt(M_TRIM_THRESHOLD, kLarge);
  mallopt(M_TOP_PAD, 64 << 20);
}

}  // namespace psring
