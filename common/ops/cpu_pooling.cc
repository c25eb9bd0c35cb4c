#include <algorithm>
#include <type_traits>

#include "common/ops/cpu_layers.h"

namespace psring {
namespace {

using elementwise::BFloat16;
using elementwise::Load;
using elementwise::Store;

// The bits of a bfloat16: loops that select such integers become vectors.
enum class Bits : uint16_t {};
PSRING_INLINE float Load(Bits x) { return Load(BFloat16{static_cast<uint16_t>(x)}); }
template <typename T>
using Selected = std::conditional_t<std::is_same_v<T, float>, float, Bits>;

template <typename T>
PSRING_INLINE void PoolForward(const PoolShape& shape, const T* __restrict x, T* __restrict y,
                               uint8_t* __restrict argmax) {
  const size_t channels = shape.channels, row = shape.width * channels;
  for (size_t line = 0; line < size_t(shape.batch) * (shape.height / 2); ++line) {
    for (size_t column = 0; column < size_t(shape.width / 2); ++column) {
      const T* const top = x + 2 * line * row + 2 * column * channels;
      for (size_t c = 0; c < channels; ++c) {
        uint32_t where = 0;
        y[c] = elementwise::HighestOfFour(top[c], top[channels + c], top[row + c], top[row + channels + c],
                                          where);
        argmax[c] = static_cast<uint8_t>(where);
      }
      y += channels;
      argmax += channels;
    }
  }
}

template <typename T>
PSRING_INLINE void PoolBackward(const PoolShape& shape, const T* __restrict dy,
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

// With blocks of channels whose sums stay in registers or the first-level cache.
template <typename T>
PSRING_INLINE void AverageForward(const PoolShape& shape, const T* __restrict x, T* __restrict y) {
  constexpr size_t kBlock = 256;
  const size_t channels = shape.channels, positions = size_t(shape.height) * shape.width;
  for (int n = 0; n < shape.batch; ++n, x += positions * channels, y += channels) {
    for (size_t first = 0; first < channels; first += kBlock) {
      const size_t count = std::min(kBlock, channels - first);
      float sums[kBlock] = {};
      for (size_t position = 0; position < positions; ++position) {
        const T* __restrict const row = x + position * channels + first;
        for (size_t c = 0; c < count; ++c) sums[c] += Load(row[c]);
      }
      for (size_t c = 0; c < count; ++c) y[first + c] = Store<T>(sums[c] / static_cast<float>(positions));
    }
  }
}

template <typename T>
PSRING_INLINE void AverageBackward(const PoolShape& shape, const T* __restrict dy, T* __restrict dx) {
  const size_t channels = shape.channels, positions = size_t(shape.height) * shape.width;
  for (int n = 0; n < shape.batch; ++n, dy += channels) {
    for (size_t position = 0; position < positions; ++position, dx += channels) {
      for (size_t c = 0; c < channels; ++c) dx[c] = Store<T>(Load(dy[c]) / static_cast<float>(positions));
    }
  }
}

PSRING_MULTIVERSION void PoolMaxima(const PoolShape& shape, ConstSpan x, Span y, uint8_t* argmax) {
  WithActivations(x.type, [&]<typename T>(T) PSRING_INLINED {
    PoolForward(shape, Elements<Selected<T>>(x), Elements<Selected<T>>(y), argmax);
  });
}

PSRING_MULTIVERSION void PoolMaximaGradient(const PoolShape& shape, ConstSpan dy, const uint8_t* argmax,
                                            Span dx) {
  WithActivations(dx.type, [&]<typename T>(T) PSRING_INLINED {
    PoolBackward(shape, Elements<Selected<T>>(dy), argmax, Elements<Selected<T>>(dx));
  });
}

PSRING_MULTIVERSION void PoolMeans(const PoolShape& shape, ConstSpan x, Span y) {
  WithActivations(
      x.type, [&]<typename T>(T) PSRING_INLINED { AverageForward(shape, Elements<T>(x), Elements<T>(y)); });
}

PSRING_MULTIVERSION void PoolMeansGradient(const PoolShape& shape, ConstSpan dy, Span dx) {
  WithActivations(dx.type, [&]<typename T>(T)
                               PSRING_INLINED { AverageBackward(shape, Elements<T>(dy), Elements<T>(dx)); });
}

class CpuPooling : public CpuFamily<PoolingOps> {
 public:
  using CpuFamily::CpuFamily;

  void MaxForward(const PoolShape& shape, ConstSpan x, Span y, uint8_t* argmax, Stream& stream) override {
    CheckPool(shape, y.count, x.count);
    CheckActivations({x, y});
    RunOnCpu(stream, [=] { PoolMaxima(shape, x, y, argmax); });
  }
  void MaxBackward(const PoolShape& shape, ConstSpan dy, const uint8_t* argmax, Span dx,
                   Stream& stream) override {
    CheckPool(shape, dy.count, dx.count);
    CheckActivations({dy, dx});
    RunOnCpu(stream, [=] { PoolMaximaGradient(shape, dy, argmax, dx); });
  }
  void AverageForward(const PoolShape& shape, ConstSpan x, Span y, Stream& stream) override {
    CheckAverage(shape, x, y);
    CheckActivations({x, y});
    RunOnCpu(stream, [=] { PoolMeans(shape, x, y); });
  }
  void AverageBackward(const PoolShape& shape, ConstSpan dy, Span dx, Stream& stream) override {
    CheckAverage(shape, dx, dy);
    CheckActivations({dy, dx});
    RunOnCpu(stream, [=] { PoolMeansGradient(shape, dy, dx); });
  }
};

}  // namespace

std::unique_ptr<PoolingOps> MakeCpuPooling(DType activations) {
  return std::make_unique<CpuPooling>(activations);
}

}  // namespace psring
