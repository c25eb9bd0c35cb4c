// The GPU kernels of layers; see gpu_kernels.h. Counts that a kernel divides are below 2^32 (gpu_ops.cc
// ensures it): 64-bit division is slow on GPUs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kernels/elementwise.h"
#include "common/kernels/elementwise_math.h"
#include "common/kernels/sixteen_bits.h"

namespace psring::gpu {

// Adjacent threads read adjacent columns. Element i is column i % columns of chunk i / columns: it applies
// the slope of the activation to its part of dy, if `saved` is given, and sums it. The slope is GELU's at
// `saved`, or 0 where `saved` is not positive.
template <typename T>
struct GradientAndSumColumns {
  uint32_t rows, columns, rows_per_chunk;
  bool gelu;
  const T* saved;  // may be null
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
      if (saved != nullptr && gelu) {
        dy[at] = elementwise::Store<T>(value * elementwise::GeluSlope(elementwise::Load(saved[at])));
        value = elementwise::Load(dy[at]);
      } else if (saved != nullptr && !(elementwise::Load(saved[at]) > 0)) {
        value = 0;
        dy[at] = T{};
      }
      sum += value;
    }
    partial[i] = sum;
  }
};

template <typename T>
struct Gelu {
  const T* x;
  T* y;
  PSRING_HOST_DEVICE void operator()(size_t i) const {
    y[i] = elementwise::Store<T>(elementwise::Gelu(elementwise::Load(x[i])));
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

// The last index of a row-major position, whose other indices remain in `position`.
PSRING_HOST_DEVICE inline uint32_t TakeIndex(uint32_t& position, uint32_t size) {
  const uint32_t index = position % size;
  position /= size;
  return index;
}

// A convolution's geometry; see ConvShape.
struct Taps {
  uint32_t height, width, channels, kernel, out_height, out_width, stride, padding;
};

// columns[image][oh][ow][i][j][c] = x[image][oh stride + i - padding][ow stride + j - padding][c], 0 outside
// the image: a convolution becomes a matrix product.
template <typename T>
struct GatherTaps {
  Taps s;
  const T* x;
  T* columns;
  PSRING_HOST_DEVICE void operator()(size_t at) const {
    uint32_t image = static_cast<uint32_t>(at);
    const uint32_t c = TakeIndex(image, s.channels), j = TakeIndex(image, s.kernel),
                   i = TakeIndex(image, s.kernel), w = TakeIndex(image, s.out_width),
                   h = TakeIndex(image, s.out_height);
    // Positions before the first row or column become large numbers.
    const uint32_t row = h * s.stride + i - s.padding, column = w * s.stride + j - s.padding;
    const bool inside = row < s.height && column < s.width;
    columns[at] = inside ? x[((size_t{image} * s.height + row) * s.width + column) * s.channels + c] : T{};
  }
};

// The inverse: dx[image][h][w][c] is the sum over the taps that read it, rounded once.
template <typename T>
struct SumTaps {
  Taps s;
  const float* columns;
  T* dx;
  PSRING_HOST_DEVICE void operator()(size_t at) const {
    uint32_t image = static_cast<uint32_t>(at);
    const uint32_t c = TakeIndex(image, s.channels), w = TakeIndex(image, s.width),
                   h = TakeIndex(image, s.height);
    float sum = 0;
    for (uint32_t i = 0; i < s.kernel; ++i) {
      const uint32_t down = h + s.padding - i, row = down / s.stride;
      if (h + s.padding < i || down % s.stride != 0 || row >= s.out_height) continue;
      for (uint32_t j = 0; j < s.kernel; ++j) {
        const uint32_t right = w + s.padding - j, column = right / s.stride;
        if (w + s.padding < j || right % s.stride != 0 || column >= s.out_width) continue;
        const size_t position = (size_t{image} * s.out_height + row) * s.out_width + column;
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

template <typename T>
struct MaxPool {
  uint32_t channels, row;
  const T* x;
  T* y;
  uint8_t* argmax;
  PSRING_HOST_DEVICE void operator()(size_t i) const {
    const T* const top = x + WindowOf(static_cast<uint32_t>(i), channels, row);
    uint32_t where = 0;
    y[i] = elementwise::HighestOfFour(top[0], top[channels], top[row], top[row + channels], where);
    argmax[i] = static_cast<uint8_t>(where);
  }
};

// Element i is channel i % channels of image i / channels; the mean over its positions.
template <typename T>
struct AveragePool {
  uint32_t positions, channels;
  const T* x;
  T* y;
  PSRING_HOST_DEVICE void operator()(size_t i) const {
    const T* const image = x + i / channels * positions * channels + i % channels;
    float sum = 0;
    for (uint32_t at = 0; at < positions; ++at) sum += elementwise::Load(image[size_t{at} * channels]);
    y[i] = elementwise::Store<T>(sum / static_cast<float>(positions));
  }
};

template <typename T>
struct AveragePoolGradient {
  uint32_t positions, channels;
  const T* dy;
  T* dx;
  PSRING_HOST_DEVICE void operator()(size_t i) const {
    const T value = dy[i / channels / positions * channels + i % channels];
    dx[i] = elementwise::Store<T>(elementwise::Load(value) / static_cast<float>(positions));
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

// Element i is a sample. One whose label is `ignored` counts nothing; another label that is not a class makes
// the loss NaN.
template <typename T>
struct CrossEntropy {
  int classes, ignored;
  const T* logits;
  const int32_t* labels;
  T* dlogits;  // may be null, or logits
  double *losses, *rights;
  PSRING_HOST_DEVICE void operator()(size_t i) const {
    const size_t at = i * static_cast<size_t>(classes);
    bool right = false;
    if (labels[i] == ignored) {
      losses[i] = rights[i] = 0;
      for (int c = 0; dlogits != nullptr && c < classes; ++c) dlogits[at + c] = T{};
      return;
    }
    losses[i] = labels[i] < 0 || labels[i] >= classes
                    ? static_cast<double>(NAN)
                    : elementwise::SoftmaxCrossEntropy(classes, logits + at, labels[i],
                                                       dlogits == nullptr ? nullptr : dlogits + at, right);
    rights[i] = right ? 1 : 0;
  }
};

}  // namespace psring::gpu
