#include "ps_server/protocol/pieces.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "common/kernels/reduce.h"
#include "common/ops/cpu_kernels.h"

namespace psring {
namespace {

// `values` as bytes, moved to an odd address and cut at random places, empty pieces among them.
struct Cut {
  Cut(const std::vector<float>& values, std::mt19937& random, size_t longest)
      : Cut(values.data(), values.size() * sizeof(float), random, longest) {}
  Cut(const void* values, size_t size, std::mt19937& random, size_t longest) : bytes(size + 1) {
    if (size > 0) std::memcpy(bytes.data() + 1, values, size);
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

TEST(PiecesTest, AddsAndCopiesPiecesOfAnyLength) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> value(-1, 1);
  for (const size_t count : {0, 1, 2, 3, 17, 1000}) {
    for (const size_t longest : {1, 2, 3, 5, 9, 100, 5000}) {
      std::vector<float> from(count), to(count);
      for (size_t i = 0; i < count; ++i) from[i] = value(random), to[i] = value(random);
      const Cut cut(from, random, longest);

      std::vector<float> sum = to;
      AddPieces(DType::kFloat32, cut.pieces, sum.data());
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(sum[i], to[i] + from[i]) << count << " cut to " << longest;

      std::vector<float> copy(count);
      CopyPieces(cut.pieces, reinterpret_cast<std::byte*>(copy.data()));
      EXPECT_EQ(copy, from);
    }
  }
}

TEST(PiecesTest, Converts16BitElementsInPiecesOfAnyLength) {
  std::mt19937 random(2);
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    for (const size_t count : {0, 1, 3, 4095, 4096, 4097, 10'000}) {
      for (const size_t longest : {1, 3, 5000, 100'000}) {
        // Whole numbers below 128 are exact in both types.
        std::vector<float> from(count), to(count, .5f);
        for (size_t i = 0; i < count; ++i) from[i] = static_cast<float>(random() % 128);
        std::vector<uint16_t> sent(count);
        cpu::Convert(DType::kFloat32, from.data(), type, sent.data(), count);
        const Cut cut(sent.data(), count * sizeof(uint16_t), random, longest);
        std::vector<float> set(count);
        SetPieces(type, cut.pieces, set.data());
        EXPECT_EQ(set, from);
        AddPieces(type, cut.pieces, to.data());
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(to[i], from[i] + .5f) << count << " cut to " << longest;
      }
    }
  }
}

TEST(PiecesTest, FindsTheFirstElementThatIsNotFiniteInEveryType) {
  std::mt19937 random(3);
  for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const size_t count : {1, 7, 5000}) {
      for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
        for (const size_t at : {size_t{0}, count / 2, count - 1}) {
          std::vector<float> values(count, 100);
          std::vector<std::byte> encoded(count * SizeOf(type));
          cpu::Convert(DType::kFloat32, values.data(), type, encoded.data(), count);
          EXPECT_EQ(FirstNotFinite(type, Cut(encoded.data(), encoded.size(), random, 13).pieces),
                    std::nullopt);
          values[at] = bad;
          cpu::Convert(DType::kFloat32, values.data(), type, encoded.data(), count);
          const Cut cut(encoded.data(), encoded.size(), random, 13);
          EXPECT_EQ(FirstNotFinite(type, cut.pieces), at);
          for (const auto take : {SetPieces, AddPieces}) {
            std::vector<float> to(count, 1);
            EXPECT_EQ(take(type, cut.pieces, to.data(), Finite::kRequired), at);
            EXPECT_EQ(to.back(), 1) << "the invalid element and those after it are not added";
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace psring
