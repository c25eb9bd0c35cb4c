#include "common/ops/cpu_kernels.h"

#include <algorithm>

#include "common/kernels/elementwise_math.h"
#include "common/ops/cpu_layers.h"

namespace psring::cpu {
namespace {

using elementwise::BFloat16;
using elementwise::Load;
using elementwise::Store;

template <typename Rule>
PSRING_INLINE void Update(Rule rule, size_t count, float* __restrict weights,
                          const float* __restrict gradient, float* __restrict a, float* __restrict b) {
  for (size_t i = 0; i < count; ++i) {
    float x[1 + Rule::kSlots] = {weights[i]};
    if constexpr (Rule::kSlots > 0) x[1] = a[i];
    if constexpr (Rule::kSlots > 1) x[2] = b[i];
    rule(x, gradient[i]);
    weights[i] = x[0];
    if constexpr (Rule::kSlots > 0) a[i] = x[1];
    if constexpr (Rule::kSlots > 1) b[i] = x[2];
  }
}

PSRING_INLINE bool IsPositive(float x) { return x > 0; }
PSRING_INLINE bool IsPositive(BFloat16 x) { return static_cast<int16_t>(x.bits) > 0; }

template <typename T>
PSRING_INLINE void Mask(size_t rows, size_t columns, const T* __restrict y, T* __restrict dy,
                        float* __restrict sums) {
  for (size_t row = 0; row < rows; ++row, y += columns, dy += columns) {
    for (size_t c = 0; c < columns; ++c) {
      const T value = IsPositive(y[c]) ? dy[c] : T{};
      dy[c] = value;
      sums[c] += Load(value);
    }
  }
}

template <typename T>
PSRING_INLINE void SumRows(size_t rows, size_t columns, const T* __restrict dy, float* __restrict sums) {
  for (size_t row = 0; row < rows; ++row, dy += columns) {
    for (size_t c = 0; c < columns; ++c) sums[c] += Load(dy[c]);
  }
}

template <typename T>
PSRING_INLINE void GeluOf(size_t count, const T* __restrict x, T* __restrict y) {
  for (size_t i = 0; i < count; ++i) y[i] = Store<T>(elementwise::Gelu(Load(x[i])));
}

template <typename T>
PSRING_INLINE void GeluGradient(size_t rows, size_t columns, const T* __restrict x, T* __restrict dy,
                                float* __restrict sums) {
  for (size_t row = 0; row < rows; ++row, x += columns, dy += columns) {
    for (size_t c = 0; c < columns; ++c) {
      const T value = Store<T>(Load(dy[c]) * elementwise::GeluSlope(Load(x[c])));
      dy[c] = value;
      sums[c] += Load(value);
    }
  }
}

}  // namespace

PSRING_MULTIVERSION void Add(size_t count, float* __restrict to, const float* __restrict from) {
  for (size_t i = 0; i < count; ++i) to[i] += from[i];
}

PSRING_MULTIVERSION void Apply(const OptimizerStep& step, size_t count, float* weights, const float* gradient,
                               float* a, float* b) {
  if (const auto* sgd = std::get_if<SgdStep>(&step)) Update(*sgd, count, weights, gradient, a, b);
  if (const auto* momentum = std::get_if<MomentumStep>(&step)) {
    Update(*momentum, count, weights, gradient, a, b);
  }
  if (const auto* adagrad = std::get_if<AdagradStep>(&step)) {
    Update(*adagrad, count, weights, gradient, a, b);
  }
  if (const auto* adam = std::get_if<AdamStep>(&step)) Update(*adam, count, weights, gradient, a, b);
}

PSRING_MULTIVERSION void MaskAndSum(ConstSpan y, Span dy, size_t columns, float* sums) {
  const size_t rows = dy.count / columns;
  std::fill_n(sums, columns, 0.0f);
  WithActivations(dy.type, [&]<typename T>(T) PSRING_INLINED {
    if (y.data == nullptr) return SumRows(rows, columns, Elements<T>(dy), sums);
    Mask(rows, columns, Elements<T>(y), Elements<T>(dy), sums);
  });
}

PSRING_MULTIVERSION void Gelu(ConstSpan x, Span y) {
  WithActivations(x.type,
                  [&]<typename T>(T) PSRING_INLINED { GeluOf(x.count, Elements<T>(x), Elements<T>(y)); });
}

PSRING_MULTIVERSION void GeluGradientAndSum(ConstSpan x, Span dy, size_t columns, float* sums) {
  std::fill_n(sums, columns, 0.0f);
  WithActivations(x.type, [&]<typename T>(T) PSRING_INLINED {
    GeluGradient(dy.count / columns, columns, Elements<T>(x), Elements<T>(dy), sums);
  });
}

}  // namespace psring::cpu
