#include "common/kernels/copy.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace psring {
namespace {

// Beginnings and ends within a cache line, shorter than a line, and several lines.
TEST(CopyPastCaches, CopiesEveryByteAndNoOthersAtAllAlignments) {
  std::vector<unsigned char> from(1000), to(1000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 7 + 1);
  for (size_t out = 0; out < 64; ++out) {
    for (const size_t in : {0, 1, 13, 64}) {
      for (const size_t bytes : {0, 1, 15, 63, 64, 65, 128, 300, 700}) {
        to.assign(to.size(), 0xee);
        cpu::CopyPastCaches(to.data() + out, from.data() + in, bytes);
        for (size_t i = 0; i < to.size(); ++i) {
          const bool copied = i >= out && i < out + bytes;
          ASSERT_EQ(to[i], copied ? from[in + i - out] : 0xee)
              << out << " " << in << " " << bytes << " " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace psring
