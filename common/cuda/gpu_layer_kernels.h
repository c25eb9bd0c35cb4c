// The GPU kernels of layers; see gpu_kernels.h. Counts that a kernel divides are below 2^32 (gpu_ops.cc
// ensures it): 64-bit division is slow on GPUs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/ops/elementwise.h"
#include "common/reduce/sixteen_bits.h"

namespace psring::gpu {

// Adjacent threads read adjacent columns. Element i is column i % columns of chunk i / columns: it sets its
// part of dy to 0 where y is given and not positive, and sums it.
template <typename T>
struct MaskAndSumColumns {
  uint32_t rows, columns, rows_per_chunk;
  const T* y;  // may be null
  T* dy;
  float* partial;  // [chunks][columns]
  PSRING_HOST_DEVICE void operator()(size_t i) const {
    const uint32_t chunk = static_cast<uint32_t>(i) / columns, column = static_cast<uint32_t>(i) % columns;
    const uint32_t first = chunk * rows_per_chunk;
    const uint32_t end = rows - first < rows_per_chunk ? rows : first + rows_per_chunk;
    float sum = 0;
    for (uint32_t row = first; row < end; ++row) {
      const size_t at = size_t{row} * columns + column;
      float value = elementwise::Load(dy[at]);
      if (y != nullptr && !(elementwise::Load(y[at]) > 0)) {
        value = 0;
        dy[at] = T{};
      }
      sum += value;
    }
    partial[i] = sum;
  }
};

// sums[i] = the sum of partial[0 ... chunks)[i].
struct SumChunks {
  uint32_t chunks, columns;
  const float* partial;
  float* sums;
  PSRING_HOST_DEVICE void operator()(size_t i) const {
    double sum = 0;
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) sum += partial[size_t{chunk} * columns + i];
    sums[i] = static_cast<float>(sum);
  }
};

// A convolution's geometry; see ConvShape.
struct Taps {
  uint32_t height, width, channels, kernel, out_height, out_width;
};

// columns[image][oh][ow][i][j][c] = x[image][oh + i][ow + j][c]: a convolution becomes a matrix product.
template <typename T>
struct GatherTaps {
  Taps s;
  const T* x;
  T* columns;
  PSRING_HOST_DEVICE void operator()(size_t at) const {
    uint32_t rest = static_cast<uint32_t>(at);
    const uint32_t c = rest % s.channels;
    rest /= s.channels;
    const uint32_t j = rest % s.kernel;
    rest /= s.kernel;
    const uint32_t i = rest % s.kernel;
    rest /= s.kernel;
    const uint32_t w = rest % s.out_width;
    rest /= s.out_width;
    const uint32_t h = rest % s.out_height;
    const uint32_t image = rest / s.out_height;
    columns[at] = x[((size_t{image} * s.height + h + i) * s.width + w + j) * s.channels + c];
  }
};

// The inverse: dx[image][h][w][c] is the sum over the taps that read it, rounded once.
template <typename T>
struct SumTaps {
  Taps s;
  const float* columns;
  T* dx;
  PSRING_HOST_DEVICE void operator()(size_t at) const {
    uint32_t rest = static_cast<uint32_t>(at);
    const uint32_t c = rest % s.channels;
    rest /= s.channels;
    const uint32_t w = rest % s.width;
    rest /= s.width;
    const uint32_t h = rest % s.height;
    const uint32_t image = rest / s.height;
    float sum = 0;
    for (uint32_t i = 0; i < s.kernel; ++i) {
      if (h < i || h - i >= s.out_height) continue;
      for (uint32_t j = 0; j < s.kernel; ++j) {
        if (w < j || w - j >= s.out_width) continue;
        const size_t position = (size_t{image} * s.out_height + h - i) * s.out_width + w - j;
        sum += columns[((position * s.kernel + i) * s.kernel + j) * s.channels + c];
      }
    }
    dx[at] = elementwise::Store<T>(sum);
  }
};

// Element i is output i of a pool. `row`: elements of an input row.
PSRING_HOST_DEVICE inline size_t WindowOf(uint32_t i, uint32_t channels, uint32_t row) {
  const uint32_t c = i % channels, pooled_width = row / channels / 2;
  const uint32_t column = i / channels % pooled_width, line = i / channels / pooled_width;
  return size_t{2} * line * row + size_t{2} * column * channels + c;
}

// For HighestOfFour.
struct ValueOf {
  template <typename T>
  PSRING_HOST_DEVICE float operator()(T value) const {
    return elementwise::Load(value);
  }
};

template <typename T>
struct MaxPool {
  uint32_t channels, row;
  const T* x;
  T* y;
  uint8_t* argmax;
  PSRING_HOST_DEVICE void operator()(size_t i) const {
    const T* const top = x + WindowOf(static_cast<uint32_t>(i), channels, row);
    uint32_t where = 0;
    y[i] = elementwise::HighestOfFour(top[0], top[channels], top[row], top[row + channels], where, ValueOf{});
    argmax[i] = static_cast<uint8_t>(where);
  }
};

template <typename T>
struct MaxPoolGradient {
  uint32_t channels, row;
  const T* dy;
  const uint8_t* argmax;
  T* dx;
  PSRING_HOST_DEVICE void operator()(size_t i) const {
    T* const top = dx + WindowOf(static_cast<uint32_t>(i), channels, row);
    const T value = dy[i];
    const uint32_t where = argmax[i];
    top[0] = where == 0 ? value : T{};
    top[channels] = where == 1 ? value : T{};
    top[row] = where == 2 ? value : T{};
    top[row + channels] = where == 3 ? value : T{};
  }
};

// Element i is a sample. A label that is not a class makes the loss NaN.
template <typename T>
struct CrossEntropy {
  int classes;
  const T* logits;
  const int32_t* labels;
  T* dlogits;  // may be null, or logits
  double *losses, *rights;
  PSRING_HOST_DEVICE void operator()(size_t i) const {
    const size_t at = i * static_cast<size_t>(classes);
    bool right = false;
    losses[i] = labels[i] < 0 || labels[i] >= classes
                    ? static_cast<double>(NAN)
                    : elementwise::SoftmaxCrossEntropy(classes, logits + at, labels[i],
                                                       dlogits == nullptr ? nullptr : dlogits + at, right);
    rights[i] = right ? 1 : 0;
  }
};

}  // namespace psring::gpu
