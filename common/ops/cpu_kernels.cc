#include "common/ops/cpu_kernels.h"

#include <algorithm>
#include <bit>

#include "common/ops/elementwise.h"
#include "common/ops/ops_common.h"
#include "common/reduce/lanes.h"
#include "common/reduce/sixteen_bits.h"

// PSRING_MULTIVERSION comes from CMake: the attribute that makes the compiler emit a function once for each
// instruction set, or nothing if it cannot.

// Of a lambda: as PSRING_INLINE.
#define PSRING_INLINED __attribute__((always_inline))

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

PSRING_MULTIVERSION void Apply(const AdagradStep& step, size_t count, float* __restrict weights,
                               const float* __restrict gradient, float* __restrict sum) {
  const auto [scale, rate, epsilon] = step;
  for (size_t i = 0; i < count; ++i) {
    elementwise::Adagrad(scale, rate, epsilon, weights[i], gradient[i], sum[i]);
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
template <typename T>
T Rounded(float value);
template <>
[[gnu::always_inline]] inline float Rounded<float>(float value) {
  return value;
}
template <>
[[gnu::always_inline]] inline BFloat16Bits Rounded<BFloat16Bits>(float value) {
  return BFloat16Bits{elementwise::Store<elementwise::BFloat16>(value).bits};
}
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

// With blocks of channels whose sums stay in registers or the first-level cache.
template <typename T>
[[gnu::always_inline]] inline void AverageForward(const PoolShape& shape, const T* __restrict x,
                                                  T* __restrict y) {
  constexpr size_t kBlock = 256;
  const size_t channels = shape.channels, positions = size_t(shape.height) * shape.width;
  for (int n = 0; n < shape.batch; ++n, x += positions * channels, y += channels) {
    for (size_t first = 0; first < channels; first += kBlock) {
      const size_t count = std::min(kBlock, channels - first);
      float sums[kBlock] = {};
      for (size_t position = 0; position < positions; ++position) {
        const T* __restrict const row = x + position * channels + first;
        for (size_t c = 0; c < count; ++c) sums[c] += ValueOf(row[c]);
      }
      for (size_t c = 0; c < count; ++c) y[first + c] = Rounded<T>(sums[c] / static_cast<float>(positions));
    }
  }
}

template <typename T>
[[gnu::always_inline]] inline void AverageBackward(const PoolShape& shape, const T* __restrict dy,
                                                   T* __restrict dx) {
  const size_t channels = shape.channels, positions = size_t(shape.height) * shape.width;
  for (int n = 0; n < shape.batch; ++n, dy += channels) {
    for (size_t position = 0; position < positions; ++position, dx += channels) {
      for (size_t c = 0; c < channels; ++c)
        dx[c] = Rounded<T>(ValueOf(dy[c]) / static_cast<float>(positions));
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

PSRING_MULTIVERSION void AveragePoolForward(const PoolShape& shape, ConstSpan x, Span y) {
  if (x.type == DType::kBFloat16) return AverageForward(shape, Bits(x), Bits(y));
  AverageForward(shape, x.floats(), y.floats());
}

PSRING_MULTIVERSION void AveragePoolBackward(const PoolShape& shape, ConstSpan dy, Span dx) {
  if (dx.type == DType::kBFloat16) return AverageBackward(shape, Bits(dy), Bits(dx));
  AverageBackward(shape, dy.floats(), dx.floats());
}

namespace {

using elementwise::BFloat16;
using elementwise::Load;
using elementwise::Store;

// Sums of kSize consecutive elements. Members, because the compiler keeps an array in memory if loops use it.
template <size_t vectors>
struct Sums : Sums<vectors - 1> {
  using Others = Sums<vectors - 1>;
  static constexpr size_t kSize = vectors * kLanes;
  Vector last = {};

  template <typename T>
  PSRING_INLINE void Set(const T* from) {
    Others::Set(from);
    last = LoadVector(from + Others::kSize);
  }
  template <typename T>
  PSRING_INLINE void Add(const T* from) {
    Others::Add(from);
    last += LoadVector(from + Others::kSize);
  }
  template <typename T>
  PSRING_INLINE void AddScaled(float factor, const T* from) {
    Others::AddScaled(factor, from);
    last += factor * LoadVector(from + Others::kSize);
  }
  template <typename T>
  PSRING_INLINE void StoreTo(T* to) const {
    Others::StoreTo(to);
    StoreVector(last, to + Others::kSize);
  }
};
template <>
struct Sums<0> {
  static constexpr size_t kSize = 0;
  template <typename T>
  PSRING_INLINE void Set(const T* /*from*/) {}
  template <typename T>
  PSRING_INLINE void Add(const T* /*from*/) {}
  template <typename T>
  PSRING_INLINE void AddScaled(float /*factor*/, const T* /*from*/) {}
  template <typename T>
  PSRING_INLINE void StoreTo(T* /*to*/) const {}
};
// The same of one element.
struct OneSum {
  static constexpr size_t kSize = 1;
  float sum = 0;

  template <typename T>
  PSRING_INLINE void Set(const T* from) {
    sum = Load(*from);
  }
  template <typename T>
  PSRING_INLINE void Add(const T* from) {
    sum += Load(*from);
  }
  template <typename T>
  PSRING_INLINE void AddScaled(float factor, const T* from) {
    sum += factor * Load(*from);
  }
  template <typename T>
  PSRING_INLINE void StoreTo(T* to) const {
    *to = Store<T>(sum);
  }
};

// work(sums, first) for blocks of `width` elements, which begin at element `first`; the sums are 0.
template <typename Work>
PSRING_INLINE void ForBlocks(size_t width, const Work& work) {
  using Most = Sums<4>;
  size_t first = 0;
  for (; first + Most::kSize <= width; first += Most::kSize) work(Most{}, first);
  for (; first + kLanes <= width; first += kLanes) work(Sums<1>{}, first);
  for (; first < width; ++first) work(OneSum{}, first);
}

// Rows are far apart, so a row is requested this many lookups before it is read.
constexpr size_t kAhead = 8;
constexpr size_t kCacheLine = 64;

PSRING_INLINE void Prefetch(const float* row, size_t width) {
  const char* const bytes = reinterpret_cast<const char*>(row);
  for (size_t at = 0; at < width * sizeof(float); at += kCacheLine) __builtin_prefetch(bytes + at);
}

template <typename T>
PSRING_INLINE int SumBags(const BagShape& s, const int32_t* at, const float* values, T* y) {
  const size_t width = static_cast<size_t>(s.width), lookups = static_cast<size_t>(s.lookups),
               first = static_cast<size_t>(s.first), per_bag = static_cast<size_t>(s.per_bag),
               used = static_cast<size_t>(s.bags) * per_bag, batch = static_cast<size_t>(s.batch);
  for (size_t sample = 0; sample < batch; ++sample) {
    for (size_t k = sample * lookups + first; k < sample * lookups + first + used; ++k) {
      if (at[k] < 0 || at[k] >= s.rows) return static_cast<int>(k);
    }
  }
  // Without divisions, which would take as long as reading a row that is in the cache.
  size_t next = first, left = batch * used, left_of_sample = used;
  const auto prefetch_next = [&]() PSRING_INLINED {
    if (left == 0) return;
    Prefetch(values + static_cast<size_t>(at[next]) * width, width);
    --left, ++next;
    if (--left_of_sample > 0) return;
    left_of_sample = used;
    next += lookups - used;
  };
  for (size_t i = 0; i < kAhead; ++i) prefetch_next();
  for (size_t sample = 0; sample < batch; ++sample) {
    T* to = y + (sample * static_cast<size_t>(s.all_bags) + static_cast<size_t>(s.first_bag)) * width;
    const int32_t* from = at + sample * lookups + first;
    for (int bag = 0; bag < s.bags; ++bag, to += width, from += per_bag) {
      for (size_t k = 0; k < per_bag; ++k) prefetch_next();
      ForBlocks(width, [&](auto sums, size_t c) PSRING_INLINED {
        for (size_t k = 0; k < per_bag; ++k) sums.Add(values + static_cast<size_t>(from[k]) * width + c);
        sums.StoreTo(to + c);
      });
    }
  }
  return -1;
}

template <typename T>
PSRING_INLINE void AddGroups(size_t width, const RowGroups& groups, const T* dy, float* gradient) {
  const int32_t* const begin = groups.begin.data();
  const int32_t* const bags = groups.bags.data();
  for (size_t i = 0; i < groups.slots.size(); ++i) {
    float* const to = gradient + static_cast<size_t>(groups.slots[i]) * width;
    const int32_t* const end = bags + begin[i + 1];
    ForBlocks(width, [&](auto sums, size_t c) PSRING_INLINED {
      for (const int32_t* bag = bags + begin[i]; bag != end; ++bag) {
        sums.Add(dy + static_cast<size_t>(*bag) * width + c);
      }
      sums.Add(to + c);
      sums.StoreTo(to + c);
    });
  }
}

// Added up in 16 lanes and then lane by lane, on every processor.
template <typename T>
PSRING_INLINE float Dot(size_t width, const T* a, const T* b) {
  Vector lanes = {};
  size_t c = 0;
  for (; c + kLanes <= width; c += kLanes) lanes += LoadVector(a + c) * LoadVector(b + c);
  float sum = SumOfLanes(lanes);
  for (; c < width; ++c) sum += Load(a[c]) * Load(b[c]);
  return sum;
}

template <typename T>
PSRING_INLINE void MultiplyPairs(const DotShape& s, const T* a, const T* b, T* y) {
  const size_t width = static_cast<size_t>(s.width), n = static_cast<size_t>(s.others);
  for (int sample = 0; sample < s.batch; ++sample, a += width, b += n * width, y += s.outputs()) {
    if (s.kind == Dots::kFirstWithOthers) {
      for (size_t i = 0; i < n; ++i) {
        y[2 * i] = Store<T>(0);
        y[2 * i + 1] = Store<T>(Dot(width, a, b + i * width));
      }
      continue;
    }
    std::copy_n(a, width, y);
    T* to = y + width;
    for (size_t j = 0; j < n; ++j) {
      *to++ = Store<T>(Dot(width, a, b + j * width));
      for (size_t i = 0; i < j; ++i) *to++ = Store<T>(Dot(width, b + i * width, b + j * width));
    }
  }
}

// The gradient of vector `of` of the n + 1 vectors a, b_1, ..., b_n: the sum of the others in their order,
// each times the gradient of its product with this one. `dy`: of the products; `first`: what is added to, or
// null.
template <typename T>
PSRING_INLINE void GradientOfPairs(size_t width, size_t n, size_t of, const T* a, const T* b, const T* dy,
                                   const T* first, T* to) {
  const size_t with_earlier = of * (of + 1) / 2 - of, with_next = of * (of + 1) / 2 + of;
  ForBlocks(width, [&](auto sums, size_t c) PSRING_INLINED {
    if (first != nullptr) sums.Set(first + c);
    if (of > 0) sums.AddScaled(Load(dy[with_earlier]), a + c);
    for (size_t i = 1; i < of; ++i) sums.AddScaled(Load(dy[with_earlier + i]), b + (i - 1) * width + c);
    for (size_t j = of + 1, pair = with_next; j <= n; pair += j, ++j) {
      sums.AddScaled(Load(dy[pair]), b + (j - 1) * width + c);
    }
    sums.StoreTo(to + c);
  });
}

// Vectors are accumulated in float32 before they are rounded.
template <typename T>
PSRING_INLINE void PairGradients(const DotShape& s, const T* a, const T* b, const T* dy, T* da, T* db) {
  const size_t width = static_cast<size_t>(s.width), n = static_cast<size_t>(s.others);
  for (int sample = 0; sample < s.batch; ++sample) {
    if (s.kind == Dots::kAllPairs) {
      const T* const products = dy + width;
      GradientOfPairs(width, n, 0, a, b, products, dy, da);
      for (size_t i = 1; i <= n; ++i) {
        GradientOfPairs<T>(width, n, i, a, b, products, nullptr, db + (i - 1) * width);
      }
    } else {
      ForBlocks(width, [&](auto sums, size_t c) PSRING_INLINED {
        for (size_t i = 0; i < n; ++i) {
          const float d = Load(dy[2 * i + 1]);
          sums.AddScaled(d, b + i * width + c);
          decltype(sums) of_other;
          of_other.AddScaled(d, a + c);
          of_other.StoreTo(db + i * width + c);
        }
        sums.StoreTo(da + c);
      });
    }
    a += width, da += width, b += n * width, db += n * width, dy += s.outputs();
  }
}

template <typename T>
PSRING_INLINE const T* DataAs(ConstSpan span) {
  return static_cast<const T*>(span.data);
}
template <typename T>
PSRING_INLINE T* DataAs(Span span) {
  return static_cast<T*>(span.data);
}

}  // namespace

PSRING_MULTIVERSION int BagsForward(const BagShape& shape, const int32_t* at, const float* values, Span y) {
  if (y.type == DType::kFloat32) return SumBags(shape, at, values, DataAs<float>(y));
  return SumBags(shape, at, values, DataAs<BFloat16>(y));
}

PSRING_MULTIVERSION void BagsBackward(size_t width, const RowGroups& groups, ConstSpan dy, float* gradient) {
  if (dy.type == DType::kFloat32) return AddGroups(width, groups, DataAs<float>(dy), gradient);
  AddGroups(width, groups, DataAs<BFloat16>(dy), gradient);
}

PSRING_MULTIVERSION void DotsForward(const DotShape& shape, ConstSpan a, ConstSpan b, Span y) {
  if (y.type == DType::kFloat32) {
    return MultiplyPairs(shape, DataAs<float>(a), DataAs<float>(b), DataAs<float>(y));
  }
  MultiplyPairs(shape, DataAs<BFloat16>(a), DataAs<BFloat16>(b), DataAs<BFloat16>(y));
}

PSRING_MULTIVERSION void DotsBackward(const DotShape& shape, ConstSpan a, ConstSpan b, ConstSpan dy, Span da,
                                      Span db) {
  if (dy.type == DType::kFloat32) {
    return PairGradients(shape, DataAs<float>(a), DataAs<float>(b), DataAs<float>(dy), DataAs<float>(da),
                         DataAs<float>(db));
  }
  PairGradients(shape, DataAs<BFloat16>(a), DataAs<BFloat16>(b), DataAs<BFloat16>(dy), DataAs<BFloat16>(da),
                DataAs<BFloat16>(db));
}

}  // namespace psring::cpu
