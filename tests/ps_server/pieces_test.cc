#include "ps_server/pieces.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace psring {
namespace {

// `values` as bytes, moved to an odd address and cut at random places, empty pieces among them.
struct Cut {
  Cut(const std::vector<float>& values, std::mt19937& random, size_t longest) : bytes(values.size() * 4 + 1) {
    if (!values.empty()) std::memcpy(bytes.data() + 1, values.data(), values.size() * 4);
    std::uniform_int_distribution<size_t> length(0, longest);
    for (size_t at = 1; at < bytes.size();) {
      const size_t n = std::min(length(random), bytes.size() - at);
      pieces.emplace_back(bytes.data() + at, n);
      at += n;
    }
  }
  std::vector<std::byte> bytes;
  std::vector<Bytes> pieces;
};

TEST(PiecesTest, AddsAndCopiesHoweverTheBytesAreCut) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> value(-1, 1);
  for (const size_t count : {0, 1, 2, 3, 17, 1000}) {
    for (const size_t longest : {1, 2, 3, 5, 9, 100, 5000}) {
      std::vector<float> from(count), to(count);
      for (size_t i = 0; i < count; ++i) from[i] = value(random), to[i] = value(random);
      const Cut cut(from, random, longest);

      std::vector<float> sum = to;
      AddPieces(cut.pieces, sum.data());
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(sum[i], to[i] + from[i]) << count << " cut to " << longest;

      std::vector<float> copy(count);
      CopyPieces(cut.pieces, reinterpret_cast<std::byte*>(copy.data()));
      EXPECT_EQ(copy, from);
    }
  }
}

}  // namespace
}  // namespace psring
