// Vectors of 16 floats in functions that are compiled once for each instruction set (PSRING_MULTIVERSION):
// the compiler splits a vector into the registers that a set has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/kernels/sixteen_bits.h"

namespace psring::cpu {

constexpr size_t kLanes = 16;
typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));

PSRING_INLINE Vector LoadVector(const float* from) {
  Vector values;
  memcpy(&values, from, sizeof(values));
  return values;
}
// Of bfloat16, with the bits of elementwise::Load and Store.
typedef uint16_t Halves __attribute__((vector_size(kLanes * sizeof(uint16_t))));
typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t))));

PSRING_INLINE Vector LoadVector(const elementwise::BFloat16* from) {
  Halves halves;
  memcpy(&halves, from, sizeof(halves));
  const Words words = __builtin_convertvector(halves, Words) << 16;
  Vector values;
  memcpy(&values, &words, sizeof(values));
  return values;
}

PSRING_INLINE void StoreVector(Vector values, float* to) { memcpy(to, &values, sizeof(values)); }
PSRING_INLINE void StoreVector(Vector values, elementwise::BFloat16* to) {
  Words words;
  memcpy(&words, &values, sizeof(words));
  const Words rounded = (words + 0x7fff + ((words >> 16) & 1)) >> 16, nan = (words >> 16) | 0x40;
  const Words stored = values != values ? nan : rounded;
  const Halves halves = __builtin_convertvector(stored, Halves);
  memcpy(to, &halves, sizeof(halves));
}

// Lane by lane.
PSRING_INLINE float SumOfLanes(const Vector& values) {
  float sum = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) sum += values[lane];
  return sum;
}

}  // namespace psring::cpu
