#include "common/cpu_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>

// PSRING_MULTIVERSION comes from CMake: the attribute that makes the compiler emit a function once for each
// instruction set, or nothing where it cannot.

namespace psring::cpu {

PSRING_MULTIVERSION void Add(size_t count, float* __restrict to, const float* __restrict from) {
  for (size_t i = 0; i < count; ++i) to[i] += from[i];
}

PSRING_MULTIVERSION void Apply(const SgdStep& step, size_t count, float* __restrict weights,
                               const float* __restrict gradient) {
  const auto [scale, rate] = step;
  for (size_t i = 0; i < count; ++i) weights[i] -= rate * (gradient[i] * scale);
}

PSRING_MULTIVERSION void Apply(const MomentumStep& step, size_t count, float* __restrict weights,
                               const float* __restrict gradient, float* __restrict velocity) {
  const auto [scale, rate, momentum] = step;
  for (size_t i = 0; i < count; ++i) {
    const float v = momentum * velocity[i] + gradient[i] * scale;
    velocity[i] = v;
    weights[i] -= rate * v;
  }
}

PSRING_MULTIVERSION void Apply(const AdamStep& step, size_t count, float* __restrict weights,
                               const float* __restrict gradient, float* __restrict mean,
                               float* __restrict variance) {
  const float scale = step.gradient_scale;
  const float beta1 = step.beta1, beta2 = step.beta2, epsilon = step.epsilon;
  const float rate = step.learning_rate / step.bias_correction1;
  const float root_correction = 1 / std::sqrt(step.bias_correction2);
  for (size_t i = 0; i < count; ++i) {
    const float g = gradient[i] * scale;
    const float m = beta1 * mean[i] + (1 - beta1) * g;
    const float v = beta2 * variance[i] + (1 - beta2) * (g * g);
    mean[i] = m;
    variance[i] = v;
    weights[i] -= rate * m / (std::sqrt(v) * root_correction + epsilon);
  }
}

PSRING_MULTIVERSION void MaskWhereZero(size_t count, const float* __restrict y, float* __restrict dy) {
  for (size_t i = 0; i < count; ++i) dy[i] = y[i] > 0 ? dy[i] : 0;
}

PSRING_MULTIVERSION void MaskWhereZero(size_t count, const BFloat16Bits* __restrict y,
                                       BFloat16Bits* __restrict dy) {
  for (size_t i = 0; i < count; ++i) dy[i] = static_cast<int16_t>(y[i]) > 0 ? dy[i] : BFloat16Bits{0};
}

namespace {

inline float ValueOf(float x) { return x; }
inline float ValueOf(BFloat16Bits x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

// Inlined into what is compiled for several instruction sets.
template <typename T>
[[gnu::always_inline]] inline void PoolForward(const PoolShape& shape, const T* __restrict x, T* __restrict y,
                                               uint8_t* __restrict argmax) {
  const size_t channels = shape.channels, row = shape.width * channels;
  for (size_t line = 0; line < size_t(shape.batch) * (shape.height / 2); ++line) {
    for (size_t column = 0; column < size_t(shape.width / 2); ++column) {
      const T* const top = x + 2 * line * row + 2 * column * channels;
      for (size_t c = 0; c < channels; ++c) {
        T best = top[c];
        uint32_t where = 0;
        const T b = top[channels + c], d = top[row + c], e = top[row + channels + c];
        where = ValueOf(b) > ValueOf(best) ? 1 : where;
        best = ValueOf(b) > ValueOf(best) ? b : best;
        where = ValueOf(d) > ValueOf(best) ? 2 : where;
        best = ValueOf(d) > ValueOf(best) ? d : best;
        where = ValueOf(e) > ValueOf(best) ? 3 : where;
        best = ValueOf(e) > ValueOf(best) ? e : best;
        y[c] = best;
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

}  // namespace

PSRING_MULTIVERSION void MaxPoolForward(const PoolShape& shape, const float* __restrict x,
                                        float* __restrict y, uint8_t* __restrict argmax) {
  PoolForward(shape, x, y, argmax);
}

PSRING_MULTIVERSION void MaxPoolForward(const PoolShape& shape, const BFloat16Bits* __restrict x,
                                        BFloat16Bits* __restrict y, uint8_t* __restrict argmax) {
  PoolForward(shape, x, y, argmax);
}

PSRING_MULTIVERSION void MaxPoolBackward(const PoolShape& shape, const float* __restrict dy,
                                         const uint8_t* __restrict argmax, float* __restrict dx) {
  PoolBackward(shape, dy, argmax, dx);
}

PSRING_MULTIVERSION void MaxPoolBackward(const PoolShape& shape, const BFloat16Bits* __restrict dy,
                                         const uint8_t* __restrict argmax, BFloat16Bits* __restrict dx) {
  PoolBackward(shape, dy, argmax, dx);
}

void SoftmaxCrossEntropy(int batch, int classes, const float* logits, const uint8_t* labels, float* dlogits,
                         double* loss_sum, int64_t* correct) {
  double loss = 0;
  int64_t right = 0;
  for (int sample = 0; sample < batch; ++sample) {
    const float* const z = logits + size_t(sample) * classes;
    const int label = labels[sample];
    PSRING_CHECK(label < classes);
    const int best = static_cast<int>(std::max_element(z, z + classes) - z);
    const float highest = z[best];  // subtracted, so that exp cannot overflow
    float sum = 0;
    for (int c = 0; c < classes; ++c) sum += std::exp(z[c] - highest);
    loss += std::log(sum) - (z[label] - highest);
    right += best == label;
    if (dlogits != nullptr) {
      float* const d = dlogits + size_t(sample) * classes;
      for (int c = 0; c < classes; ++c) d[c] = std::exp(z[c] - highest) / sum;
      d[label] -= 1;
    }
  }
  *loss_sum += loss;
  *correct += right;
}

}  // namespace psring::cpu
