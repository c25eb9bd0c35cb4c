// Floats that are stored in 16 bits: the same bits on CPUs and GPUs. C++17, since CUDA's compilers read it
// too.
//
// Written in integers and without branches, so that loops vectorize with any instruction set; the results
// equal those of the instructions in reduce_vectors.h.
#pragma once

#include <cstdint>
#include <cstring>

// Marks functions that run on CPUs and GPUs.
#ifdef __CUDACC__
#define PSRING_HOST_DEVICE __host__ __device__
#else
#define PSRING_HOST_DEVICE
#endif

// Always inlined: a function that is compiled for several instruction sets must contain its callees.
#define PSRING_INLINED __attribute__((always_inline))  // of a lambda
#define PSRING_INLINE PSRING_INLINED inline
#define PSRING_EVERYWHERE PSRING_HOST_DEVICE PSRING_INLINE

namespace psring::elementwise {

// The upper half of a float.
struct BFloat16 {
  uint16_t bits;
};
// IEEE 754 half precision.
struct Float16 {
  uint16_t bits;
};

template <typename To, typename From>
PSRING_EVERYWHERE To BitsAs(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

PSRING_EVERYWHERE float Load(float value) { return value; }
PSRING_EVERYWHERE float Load(BFloat16 value) { return BitsAs<float>(uint32_t{value.bits} << 16); }
PSRING_EVERYWHERE float Load(Float16 value) {
  constexpr int32_t kBias = (127 - 15) << 23;  // between the two formats' exponents
  const int32_t magnitude = (value.bits & 0x7fff) << 13;
  const int32_t normal = magnitude + kBias;
  const int32_t special = normal + kBias;  // infinity and NaN: the highest exponent of both formats
  // A subnormal's digits as those of a number with exponent -14, minus that number's leading 1.
  const float subnormal = BitsAs<float>(normal + (1 << 23)) - BitsAs<float>(kBias + (1 << 23));
  int32_t bits = magnitude < (0x7c00 << 13) ? normal : special;
  bits = magnitude < (0x0400 << 13) ? BitsAs<int32_t>(subnormal) : bits;
  return BitsAs<float>(uint32_t(bits) | uint32_t(value.bits & 0x8000) << 16);
}

// Rounded to nearest even; a NaN becomes a quiet NaN.
template <typename T>
PSRING_HOST_DEVICE T Store(float value);
template <>
PSRING_EVERYWHERE float Store<float>(float value) {
  return value;
}
template <>
PSRING_EVERYWHERE BFloat16 Store<BFloat16>(float value) {
  const uint32_t bits = BitsAs<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40;
  return {static_cast<uint16_t>(value != value ? nan : rounded)};
}
template <>
PSRING_EVERYWHERE Float16 Store<Float16>(float value) {
  constexpr int32_t kBias = (127 - 15) << 23;
  constexpr int32_t kHalf =
      126 << 23;  // 0.5f: its last digit is worth 2^-24, as that of float16's subnormals
  const uint32_t bits = BitsAs<uint32_t>(value);
  const int32_t magnitude = bits & 0x7fffffff;
  // Values that are too large round up to infinity's pattern, unless they are far above it.
  const int32_t normal = (magnitude - kBias + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // The addition rounds at the last digit of a subnormal.
  const float shifted = BitsAs<float>(magnitude) + BitsAs<float>(kHalf);
  const int32_t subnormal = BitsAs<int32_t>(shifted) - kHalf;
  int32_t half = magnitude < (113 << 23) ? subnormal : normal;
  half = magnitude < (143 << 23) ? half : 0x7c00;
  half = magnitude > (255 << 23) ? 0x7e00 | ((magnitude >> 13) & 0x3ff) : half;
  return {static_cast<uint16_t>(uint32_t(half) | (bits >> 16 & 0x8000))};
}

}  // namespace psring::elementwise
