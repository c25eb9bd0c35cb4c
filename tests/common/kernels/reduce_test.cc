#include "common/kernels/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "tests/random_moments.h"

namespace psring {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The definition of a 16-bit format, in double.
struct Format {
  int digits;  // stored ones
  int bias;
  int infinity;  // its pattern
  std::vector<double> values;

  Format(int digits, int bias, int infinity) : digits(digits), bias(bias), infinity(infinity) {
    for (int bits = 0; bits < 65536; ++bits) values.push_back(ByDigits(bits));
  }

  double Value(uint16_t bits) const { return values[bits]; }

  double ByDigits(int bits) const {
    const int exponent = (bits & 0x7fff) >> digits;
    const int fraction = bits & ((1 << digits) - 1);
    double value = exponent == 0 ? std::ldexp(fraction, 1 - bias - digits)
                                 : std::ldexp(fraction + (1 << digits), exponent - bias - digits);
    if ((bits & 0x7fff) == infinity) value = kInfinity;
    if ((bits & 0x7fff) > infinity) value = kNan;
    return bits & 0x8000 ? -value : value;
  }

  // The nearest pattern; of two equally near the even one. Patterns of one sign are in the order of their
  // values, and infinity is in the place of the next larger number.
  uint16_t Nearest(double value) const {
    if (std::isnan(value)) return static_cast<uint16_t>(infinity | 1 << (digits - 1));
    const double magnitude = std::abs(value);
    int low = 0, high = infinity;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (Value(middle) <= magnitude ? low : high) = middle;
    }
    const double above = high == infinity ? 2 * Value(infinity - (1 << digits)) : Value(high);
    const double to_low = magnitude - Value(low), to_high = above - magnitude;
    const int nearest = to_low < to_high || (to_low == to_high && low % 2 == 0) ? low : high;
    return static_cast<uint16_t>(nearest | (std::signbit(value) ? 0x8000 : 0));
  }
};
const Format kBFloat16(7, 127, 0x7f80);
const Format kFloat16(10, 15, 0x7c00);
const Format& FormatOf(DType type) { return type == DType::kBFloat16 ? kBFloat16 : kFloat16; }

// Elements of a type, as 32 bits each.
class Array {
 public:
  Array(DType type, size_t count) : type_(type), bytes_(count * SizeOf(type) + kGuard, std::byte{0x5a}) {}
  void* data() { return bytes_.data(); }
  float Get(size_t i) const {
    if (type_ != DType::kFloat32) return static_cast<float>(FormatOf(type_).Value(Bits(i)));
    return std::bit_cast<float>(Bits(i));
  }
  uint32_t Bits(size_t i) const {
    uint32_t bits = 0;
    std::memcpy(&bits, bytes_.data() + i * SizeOf(type_), SizeOf(type_));
    return bits;
  }
  void SetBits(size_t i, uint32_t bits) {
    std::memcpy(bytes_.data() + i * SizeOf(type_), &bits, SizeOf(type_));
  }
  bool GuardIsUntouched() const {
    return std::all_of(bytes_.end() - kGuard, bytes_.end(), [](std::byte b) { return b == std::byte{0x5a}; });
  }

 private:
  static constexpr size_t kGuard = 64;
  DType type_;
  std::vector<std::byte> bytes_;
};

uint32_t Rounded(DType type, float value) {
  return type == DType::kFloat32 ? std::bit_cast<uint32_t>(value) : FormatOf(type).Nearest(value);
}

bool IsNan(DType type, uint32_t bits) {
  return type == DType::kFloat32 ? std::isnan(std::bit_cast<float>(bits))
                                 : (bits & 0x7fff) > uint32_t(FormatOf(type).infinity);
}

// Patterns at random: all magnitudes; one in 16 is a zero, subnormal, infinity or NaN.
uint32_t AnyBits(DType type, std::mt19937& random) {
  const uint32_t bits = type == DType::kFloat32 ? random() : random() & 0xffff;
  if (random() % 16 != 0) {
    // Of magnitude about 1, so that sums have something to round.
    const float value = std::ldexp(float(int32_t(random())) / 2147483648.0f, int(random() % 6));
    return random() % 4 == 0 && !IsNan(type, bits) ? bits : Rounded(type, value);
  }
  const uint32_t sign = type == DType::kFloat32 ? 0x80000000u : 0x8000u;
  const uint32_t infinity =
      type == DType::kFloat32 ? 0x7f800000u : static_cast<uint32_t>(FormatOf(type).infinity);
  const uint32_t specials[] = {0, 1, 2, infinity, infinity + 1, infinity - 1, infinity | (infinity >> 1)};
  return specials[random() % std::size(specials)] | (random() & sign);
}

float Combined(ReduceOp op, float a, float b) {
  if (op == ReduceOp::kSum || op == ReduceOp::kMean) return a + b;
  if (std::isnan(a) || std::isnan(b)) return kNan;
  if (op == ReduceOp::kMin) return b < a ? b : a;
  return b > a ? b : a;
}

// Against the definition: combined in float32, rounded once, and NaN if any source is (some are). `alias`:
// which source is also the target; -1: none.
void CheckReduce(ReduceOp op, DType type, size_t count, int source_count, int alias) {
  std::mt19937 random(TestSeed() - 1 + count * 64 + source_count);
  std::vector<Array> sources(source_count, Array(type, count));
  Array target(type, count);
  std::vector<const void*> pointers;
  for (Array& source : sources) {
    for (size_t i = 0; i < count; ++i) source.SetBits(i, AnyBits(type, random));
    pointers.push_back(source.data());
  }
  std::vector<uint32_t> expected(count);
  for (size_t i = 0; i < count; ++i) {
    float value = sources[0].Get(i);
    for (int s = 1; s < source_count; ++s) value = Combined(op, value, sources[s].Get(i));
    expected[i] = source_count == 1 ? sources[0].Bits(i) : Rounded(type, value);
  }
  Array& to = alias < 0 ? target : sources[alias];
  const std::vector<Array> before = sources;
  cpu::Reduce(op, type, count, to.data(), pointers.data(), source_count);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = to.Bits(i);
    ASSERT_TRUE(bits == expected[i] || (IsNan(type, bits) && IsNan(type, expected[i])))
        << Name(op) << " of " << source_count << " " << Name(type) << ", " << count << " elements, into "
        << alias << ": element " << i << " is " << std::hex << bits << ", not " << expected[i];
  }
  EXPECT_TRUE(to.GuardIsUntouched());
  for (int s = 0; s < source_count; ++s) {
    for (size_t i = 0; s != alias && i < count; ++i) ASSERT_EQ(sources[s].Bits(i), before[s].Bits(i));
  }
}

TEST(ReduceTest, EqualsAPlainLoopBitForBitWhicheverSourceIsTheTarget) {
  for (DType type : kTypes) {
    for (ReduceOp op : kOps) {
      for (size_t count : {0, 1, 3, 16, 1000, 1037}) {
        for (int sources = 1; sources <= 7; ++sources) {
          for (int alias = -1; alias < sources; ++alias) CheckReduce(op, type, count, sources, alias);
        }
      }
    }
  }
}

TEST(ReduceTest, ManySourcesAndManyBlocksEqualAPlainLoop) {
  for (DType type : kTypes) {
    for (ReduceOp op : kOps) {
      for (int sources : {2, 8, 9, 64}) {
        CheckReduce(op, type, 4133, sources, -1);
        CheckReduce(op, type, 4133, sources, sources - 1);
      }
    }
  }
}

TEST(ReduceTest, BitsDoNotDependOnAlignmentOrSlices) {
  for (DType type : kTypes) {
    std::mt19937 random(TestSeed());
    const size_t count = 300, size = SizeOf(type);
    std::vector<Array> sources(3, Array(type, count));
    for (Array& source : sources) {
      for (size_t i = 0; i < count; ++i)
        source.SetBits(i, Rounded(type, float(int32_t(random())) / (1 << 30)));
    }
    const auto reduce = [&](Array& to, size_t begin, size_t end) {
      const void* at[3];
      for (int s = 0; s < 3; ++s) at[s] = static_cast<std::byte*>(sources[s].data()) + begin * size;
      cpu::Reduce(ReduceOp::kSum, type, end - begin, static_cast<std::byte*>(to.data()) + begin * size, at,
                  3);
    };
    Array whole(type, count), parts(type, count);
    reduce(whole, 0, count);
    for (size_t cut : {1, 7, 63, 64, 65, 150}) {
      reduce(parts, 0, cut);
      reduce(parts, cut, count);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(parts.Bits(i), whole.Bits(i)) << Name(type) << " " << cut;
    }
  }
}

TEST(ScaleTest, EqualsAPlainLoop) {
  for (DType type : kTypes) {
    for (size_t count : {0, 1, 3, 16, 1000, 1037}) {
      std::mt19937 random(TestSeed() - 1 + count);
      Array data(type, count);
      for (size_t i = 0; i < count; ++i) data.SetBits(i, AnyBits(type, random));
      const Array before = data;
      cpu::Scale(type, count, data.data(), 1.0f / 3);
      for (size_t i = 0; i < count; ++i) {
        const uint32_t expected = Rounded(type, before.Get(i) * (1.0f / 3));
        ASSERT_TRUE(data.Bits(i) == expected || (IsNan(type, expected) && IsNan(type, data.Bits(i))))
            << Name(type) << " " << before.Get(i);
      }
      EXPECT_TRUE(data.GuardIsUntouched());
    }
  }
}

TEST(ConvertTest, All65536PatternsRoundTrip) {
  for (DType type : {DType::kBFloat16, DType::kFloat16}) {
    std::vector<uint16_t> all(65536), back(65536);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    std::vector<float> floats(65536);
    cpu::Convert(type, all.data(), DType::kFloat32, floats.data(), all.size());
    cpu::Convert(DType::kFloat32, floats.data(), type, back.data(), all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      if (IsNan(type, all[i])) {
        EXPECT_TRUE(std::isnan(floats[i]));
        EXPECT_TRUE(IsNan(type, back[i]));
        continue;
      }
      const float value = static_cast<float>(FormatOf(type).Value(all[i]));
      ASSERT_EQ(std::bit_cast<uint32_t>(floats[i]), std::bit_cast<uint32_t>(value)) << Name(type) << " " << i;
      ASSERT_EQ(back[i], all[i]) << Name(type);
    }
  }
}

TEST(ConvertTest, RoundsToNearestEvenBetweenAllNeighbours) {
  for (DType type : {DType::kBFloat16, DType::kFloat16}) {
    const Format& format = FormatOf(type);
    std::vector<float> values;
    for (int bits = 0; bits < format.infinity; ++bits) {
      // The middle between two neighbors is a float32, and so is what lies just beside it.
      const double above = bits + 1 == format.infinity
                               ? 2 * format.Value(format.infinity - (1 << format.digits))
                               : format.Value(bits + 1);
      const float middle = static_cast<float>((format.Value(bits) + above) / 2);
      for (float value : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, kInfinity)}) {
        values.push_back(value);
        values.push_back(-value);
      }
    }
    for (float value : {kInfinity, -kInfinity, kNan, std::numeric_limits<float>::max(),
                        std::numeric_limits<float>::denorm_min(), 65519.996f, 65520.0f, 65536.0f, 1e5f}) {
      values.push_back(value);
    }
    std::vector<uint16_t> rounded(values.size());
    cpu::Convert(DType::kFloat32, values.data(), type, rounded.data(), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        EXPECT_TRUE(IsNan(type, rounded[i]));
      } else {
        ASSERT_EQ(rounded[i], format.Nearest(values[i])) << Name(type) << " " << values[i];
      }
    }
  }
}

TEST(ConvertTest, ConvertsBetweenThe16BitTypesAndCopiesEqualTypes) {
  const std::vector<uint16_t> halves = {kFloat16.Nearest(1.5), kFloat16.Nearest(-3e-7),
                                        kFloat16.Nearest(65504)};
  std::vector<uint16_t> to(3);
  cpu::Convert(DType::kFloat16, halves.data(), DType::kBFloat16, to.data(), 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(to[i], kBFloat16.Nearest(kFloat16.Value(halves[i])));
  cpu::Convert(DType::kFloat16, halves.data(), DType::kFloat16, to.data(), 3);
  EXPECT_EQ(to, halves);
}

TEST(NamesTest, NamesRoundTripAndThoseOfNcclTestsAreAccepted) {
  for (ReduceOp op : kOps) EXPECT_EQ(ParseReduceOp(Name(op)).value(), op);
  for (DType type : kTypes) EXPECT_EQ(ParseDType(Name(type)).value(), type);
  EXPECT_EQ(ParseReduceOp("avg").value(), ReduceOp::kMean);
  EXPECT_EQ(ParseDType("float").value(), DType::kFloat32);
  EXPECT_EQ(ParseDType("half").value(), DType::kFloat16);
}

TEST(NamesTest, AnUnknownNameIsAnErrorThatListsTheKnownOnes) {
  EXPECT_EQ(ParseReduceOp("prod").status(),
            absl::InvalidArgumentError("unknown reduction 'prod'; use one of sum, mean, min, max, avg"));
  EXPECT_EQ(
      ParseDType("int8").status(),
      absl::InvalidArgumentError("unknown type 'int8'; use one of float32, bfloat16, float16, float, half"));
}

}  // namespace
}  // namespace psring
