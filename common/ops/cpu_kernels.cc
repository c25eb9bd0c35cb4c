#include "common/ops/cpu_kernels.h"

#include <algorithm>
#include <bit>

#include "common/ops/elementwise.h"
#include "common/ops/ops_common.h"

// PSRING_MULTIVERSION comes from CMake: the attribute that makes the compiler emit a function once for each
// instruction set, or nothing if it cannot.

namespace psring::cpu {

PSRING_MULTIVERSION void Add(size_t count, float* __restrict to, const float* __restrict from) {
  for (size_t i = 0; i < count; ++i) to[i] += from[i];
}

PSRING_MULTIVERSION void Apply(const SgdStep& step, size_t count, float* __restrict weights,
                               const float* __restrict gradient) {
  const auto [scale, rate] = step;
  for (size_t i = 0; i < count; ++i) elementwise::Sgd(scale, rate, weights[i], gradient[i]);
}

PSRING_MULTIVERSION void Apply(const MomentumStep& step, size_t count, float* __restrict weights,
                               const float* __restrict gradient, float* __restrict velocity) {
  const auto [scale, rate, momentum] = step;
  for (size_t i = 0; i < count; ++i) {
    elementwise::Momentum(scale, rate, momentum, weights[i], gradient[i], velocity[i]);
  }
}

PSRING_MULTIVERSION void Apply(const AdamStep& step, size_t count, float* __restrict weights,
                               const float* __restrict gradient, float* __restrict mean,
                               float* __restrict variance) {
  const elementwise::AdamRates rates = RatesOf(step);
  for (size_t i = 0; i < count; ++i) {
    elementwise::Adam(rates, weights[i], gradient[i], mean[i], variance[i]);
  }
}

namespace {

// The storage of a bfloat16: the upper half of a float. An enumeration, so that it converts to nothing else.
enum class BFloat16Bits : uint16_t {};

inline float ValueOf(float x) { return x; }
inline float ValueOf(BFloat16Bits x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }
inline bool IsPositive(float x) { return x > 0; }
inline bool IsPositive(BFloat16Bits x) { return static_cast<int16_t>(x) > 0; }

// Inlined into what is compiled for several instruction sets.
template <typename T>
[[gnu::always_inline]] inline void Mask(size_t rows, size_t columns, const T* __restrict y, T* __restrict dy,
                                        float* __restrict sums) {
  for (size_t row = 0; row < rows; ++row, y += columns, dy += columns) {
    for (size_t c = 0; c < columns; ++c) {
      const T value = IsPositive(y[c]) ? dy[c] : T{0};
      dy[c] = value;
      sums[c] += ValueOf(value);
    }
  }
}

template <typename T>
[[gnu::always_inline]] inline void SumRows(size_t rows, size_t columns, const T* __restrict dy,
                                           float* __restrict sums) {
  for (size_t row = 0; row < rows; ++row, dy += columns) {
    for (size_t c = 0; c < columns; ++c) sums[c] += ValueOf(dy[c]);
  }
}

template <typename T>
[[gnu::always_inline]] inline void PoolForward(const PoolShape& shape, const T* __restrict x, T* __restrict y,
                                               uint8_t* __restrict argmax) {
  const size_t channels = shape.channels, row = shape.width * channels;
  for (size_t line = 0; line < size_t(shape.batch) * (shape.height / 2); ++line) {
    for (size_t column = 0; column < size_t(shape.width / 2); ++column) {
      const T* const top = x + 2 * line * row + 2 * column * channels;
      for (size_t c = 0; c < channels; ++c) {
        uint32_t where = 0;
        y[c] = elementwise::HighestOfFour(top[c], top[channels + c], top[row + c], top[row + channels + c],
                                          where, [](T v) { return ValueOf(v); });
        argmax[c] = static_cast<uint8_t>(where);
      }
      y += channels;
      argmax += channels;
    }
  }
}

template <typename T>
[[gnu::always_inline]] inline void PoolBackward(const PoolShape& shape, const T* __restrict dy,
                                                const uint8_t* __restrict argmax, T* __restrict dx) {
  const size_t channels = shape.channels, row = shape.width * channels;
  for (size_t line = 0; line < size_t(shape.batch) * (shape.height / 2); ++line) {
    for (size_t column = 0; column < size_t(shape.width / 2); ++column) {
      T* const top = dx + 2 * line * row + 2 * column * channels;
      for (size_t c = 0; c < channels; ++c) {
        const T value = dy[c];
        const uint32_t where = argmax[c];
        top[c] = where == 0 ? value : T{0};
        top[channels + c] = where == 1 ? value : T{0};
        top[row + c] = where == 2 ? value : T{0};
        top[row + channels + c] = where == 3 ? value : T{0};
      }
      dy += channels;
      argmax += channels;
    }
  }
}

const BFloat16Bits* Bits(ConstSpan span) { return static_cast<const BFloat16Bits*>(span.data); }
BFloat16Bits* Bits(Span span) { return static_cast<BFloat16Bits*>(span.data); }

}  // namespace

PSRING_MULTIVERSION void MaskAndSum(ConstSpan y, Span dy, size_t columns, float* sums) {
  const size_t rows = dy.count / columns;
  std::fill_n(sums, columns, 0.0f);
  const bool is_float = dy.type == DType::kFloat32;
  if (y.data == nullptr) {
    if (is_float) return SumRows(rows, columns, dy.floats(), sums);
    return SumRows(rows, columns, Bits(dy), sums);
  }
  if (is_float) return Mask(rows, columns, y.floats(), dy.floats(), sums);
  Mask(rows, columns, Bits(y), Bits(dy), sums);
}

PSRING_MULTIVERSION void MaxPoolForward(const PoolShape& shape, ConstSpan x, Span y, uint8_t* argmax) {
  if (x.type == DType::kBFloat16) return PoolForward(shape, Bits(x), Bits(y), argmax);
  PoolForward(shape, x.floats(), y.floats(), argmax);
}

PSRING_MULTIVERSION void MaxPoolBackward(const PoolShape& shape, ConstSpan dy, const uint8_t* argmax,
                                         Span dx) {
  if (dx.type == DType::kBFloat16) return PoolBackward(shape, Bits(dy), argmax, Bits(dx));
  PoolBackward(shape, dy.floats(), argmax, dx.floats());
}

void SoftmaxCrossEntropy(int batch, int classes, const float* logits, const int32_t* labels, float* dlogits,
                         double* loss_sum, int64_t* correct) {
  double loss = 0;
  int64_t right = 0;
  for (int sample = 0; sample < batch; ++sample) {
    const int label = labels[sample];
    PSRING_CHECK(label < classes);
    const size_t at = size_t(sample) * classes;
    bool hit = false;
    loss += elementwise::SoftmaxCrossEntropy(classes, logits + at, label,
                                             dlogits == nullptr ? nullptr : dlogits + at, hit);
    right += hit;
  }
  *loss_sum += loss;
  *correct += right;
}

}  // namespace psring::cpu
