// A GPU's kernels, products and convolutions, in plain loops.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "common/base/check.h"
#include "common/cuda/gpu_kernels.h"
#include "common/cuda/gpu_reduce.h"
#include "common/cuda_ops/gpu_ops.h"
#include "common/kernels/sixteen_bits.h"

namespace psring {

// Backwards: a result must not depend on the order of a GPU's threads. `Kernel`: gpu::Kernel or
// gpu::ReduceKernel.
template <typename Kernel>
void LaunchInLoop(size_t count, const Kernel& kernel) {
  if (count == 0) return;
  std::visit(
      [count](const auto& k) {
        gpu::LaunchWide(count, k, [](size_t threads, const auto& thread) {
          for (size_t i = threads; i-- > 0;) thread(i);
        });
      },
      kernel);
}

// Element i of values of a type.
inline float ValueAt(DType type, const void* values, size_t i) {
  PSRING_CHECK(type != DType::kFloat16);
  if (type == DType::kFloat32) return static_cast<const float*>(values)[i];
  return elementwise::Load(static_cast<const elementwise::BFloat16*>(values)[i]);
}
inline void StoreAt(DType type, void* values, size_t i, double value) {
  PSRING_CHECK(type != DType::kFloat16);
  const float rounded = static_cast<float>(value);
  if (type == DType::kFloat32) {
    static_cast<float*>(values)[i] = rounded;
  } else {
    static_cast<elementwise::BFloat16*>(values)[i] = elementwise::Store<elementwise::BFloat16>(rounded);
  }
}

// Values as factors of a product: tf32 keeps 10 mantissa bits, rounded to nearest.
inline std::vector<double> FactorsOf(Precision precision, DType type, const void* values, size_t count) {
  std::vector<double> factors(count);
  for (size_t i = 0; i < count; ++i) {
    const float value = ValueAt(type, values, i);
    factors[i] = precision != Precision::kTf32
                     ? value
                     : std::bit_cast<float>((std::bit_cast<uint32_t>(value) + 0x1000) & 0xffffe000);
  }
  return factors;
}

inline void MultiplyInLoops(const MatrixProduct& p, Precision precision = Precision::kFloat32) {
  const std::vector<double> a = FactorsOf(precision, p.inputs, p.a, p.m * p.k),
                            b = FactorsOf(precision, p.inputs, p.b, p.k * p.n);
  for (size_t row = 0; row < p.m; ++row) {
    for (size_t column = 0; column < p.n; ++column) {
      const size_t at = row * p.n + column;
      double sum = (p.add ? ValueAt(p.output, p.c, at) : 0) +
                   (p.bias != nullptr ? ValueAt(p.output, p.bias, column) : 0);
      for (size_t i = 0; i < p.k; ++i)
        sum += a[p.a_transposed ? i * p.m + row : row * p.k + i] *
               b[p.b_transposed ? column * p.k + i : i * p.n + column];
      StoreAt(p.output, p.c, at, p.relu ? std::max(sum, 0.0) : sum);
    }
  }
}

inline void ConvolveInLoops(const Convolution& c, Precision precision = Precision::kFloat32) {
  const ConvShape& s = c.shape;
  const size_t positions = size_t(s.batch) * s.out_height() * s.out_width();
  const size_t taps = size_t(s.kernel) * s.kernel * s.in_channels;
  const size_t x_count = size_t(s.batch) * s.height * s.width * s.in_channels,
               weight_count = s.out_channels * taps, y_count = positions * s.out_channels;
  const bool forward = c.part == Convolution::Part::kForward;
  const std::vector<double> from = FactorsOf(precision, c.type, c.from, forward ? x_count : y_count);
  const std::vector<double> weight = FactorsOf(precision, c.type, c.weight, weight_count);
  std::vector<double> sums(forward ? y_count : x_count);
  for (size_t position = 0; position < positions; ++position) {
    const size_t ow = position % s.out_width(), oh = position / s.out_width() % s.out_height(),
                 n = position / s.out_width() / s.out_height();
    for (size_t tap = 0; tap < taps; ++tap) {
      const size_t channel = tap % s.in_channels, j = tap / s.in_channels % s.kernel,
                   i = tap / s.in_channels / s.kernel;
      const size_t row = oh * s.stride + i - s.padding, column = ow * s.stride + j - s.padding;
      if (row >= size_t(s.height) || column >= size_t(s.width)) continue;  // numbers below 0 are large
      const size_t x = ((n * s.height + row) * s.width + column) * s.in_channels + channel;
      for (int out = 0; out < s.out_channels; ++out) {
        const size_t y = position * s.out_channels + out, w = out * taps + tap;
        if (forward) sums[y] += from[x] * weight[w];
        if (!forward) sums[x] += from[y] * weight[w];
      }
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    if (c.bias != nullptr) sums[i] += ValueAt(c.type, c.bias, i % s.out_channels);
    if (forward && s.activation == Activation::kRelu) sums[i] = std::max(sums[i], 0.0);
    StoreAt(c.type, c.to, i, sums[i]);
  }
}

}  // namespace psring
