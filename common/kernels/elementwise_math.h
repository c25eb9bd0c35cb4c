// Transcendental functions of layers, written once for CPUs and GPUs. Without branches, so that loops over
// them vectorize; every operation is rounded separately, so both sides have the same bits. C++17, since
// CUDA's compilers read it too.
#pragma once

#include <cstdint>

#include "common/kernels/sixteen_bits.h"

namespace psring::elementwise {

// e^x with a relative error of at most 2.5e-7 for x in [-87, 88]; 0 below, e^88 above, NaN for NaN.
// Polynomial of Cephes' expf (Moshier 1992) on x - n ln 2.
PSRING_EVERYWHERE float Exp(float x) {
  constexpr float kLowest = -87.0f, kHighest = 88.0f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const bool vanishes = x < kLowest;
  x = vanishes ? kLowest : x;
  x = x > kHighest ? kHighest : x;
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float power = (p * (r * r) + r) + 1.0f;
  const float result = power * BitsAs<float>((BitsAs<uint32_t>(shifted) << 23) + (uint32_t{127} << 23));
  return vanishes ? 0.0f : result;
}

// GELU in GPT-2's form (Hendrycks & Gimpel 2016): u/2 (1 + tanh(sqrt(2/pi) (u + 0.044715 u^3))), here u
// sigmoid of twice the argument of tanh. Absolute error at most 5e-7 (1 + |u|).
constexpr float kGeluScale = 1.5957691216f, kGeluCubic = 0.044715f;  // 2 sqrt(2/pi)

PSRING_EVERYWHERE float GeluSigmoid(float u) {
  float exponent = -kGeluScale * (u + kGeluCubic * u * u * u);
  exponent = exponent > 80.0f ? 80.0f : exponent;  // the quotient stays a normal number
  return 1.0f / (1.0f + Exp(exponent));
}
PSRING_EVERYWHERE float Gelu(float u) { return u * GeluSigmoid(u); }
PSRING_EVERYWHERE float GeluSlope(float u) {
  const float s = GeluSigmoid(u);
  return s + u * s * (1.0f - s) * (kGeluScale * (1.0f + 3.0f * kGeluCubic * u * u));
}

}  // namespace psring::elementwise
