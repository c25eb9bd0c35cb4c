#include <algorithm>

#include "common/kernels/lanes.h"
#include "common/ops/cpu_layers.h"

namespace psring {
namespace {

using cpu::kLanes;
using cpu::LoadVector;
using cpu::StoreVector;
using cpu::SumOfLanes;
using cpu::Vector;
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

// The first lookup of the batch whose row is outside the table, or -1; then y is incomplete.
PSRING_MULTIVERSION int BagsForward(const BagShape& shape, const int32_t* at, const float* values, Span y) {
  return WithActivations(
      y.type, [&]<typename T>(T) PSRING_INLINED { return SumBags(shape, at, values, Elements<T>(y)); });
}

PSRING_MULTIVERSION void BagsBackward(size_t width, const RowGroups& groups, ConstSpan dy, float* gradient) {
  WithActivations(dy.type,
                  [&]<typename T>(T) PSRING_INLINED { AddGroups(width, groups, Elements<T>(dy), gradient); });
}

PSRING_MULTIVERSION void DotsForward(const DotShape& shape, ConstSpan a, ConstSpan b, Span y) {
  WithActivations(y.type, [&]<typename T>(T) PSRING_INLINED {
    MultiplyPairs(shape, Elements<T>(a), Elements<T>(b), Elements<T>(y));
  });
}

PSRING_MULTIVERSION void DotsBackward(const DotShape& shape, ConstSpan a, ConstSpan b, ConstSpan dy, Span da,
                                      Span db) {
  WithActivations(dy.type, [&]<typename T>(T) PSRING_INLINED {
    PairGradients(shape, Elements<T>(a), Elements<T>(b), Elements<T>(dy), Elements<T>(da), Elements<T>(db));
  });
}

void CheckDots(const DotShape& shape, ConstSpan a, ConstSpan b, ConstSpan y) {
  PSRING_CHECK(a.count == size_t(shape.batch) * shape.width);
  PSRING_CHECK(b.count == a.count * shape.others);
  PSRING_CHECK(y.count == size_t(shape.batch) * shape.outputs());
}

class CpuBags : public CpuFamily<BagOps> {
 public:
  using CpuFamily::CpuFamily;

  void Forward(const BagShape& shape, const int32_t* at, ConstSpan values, Span y, Stream& stream) override {
    PSRING_CHECK(values.count == size_t(shape.rows) * shape.width);
    PSRING_CHECK(y.count == size_t(shape.batch) * shape.all_bags * shape.width);
    PSRING_CHECK(shape.first + shape.bags * shape.per_bag <= shape.lookups);
    PSRING_CHECK(shape.first_bag + shape.bags <= shape.all_bags);
    CheckActivations({y});
    stream.Run([=] {
      const int outside = BagsForward(shape, at, values.floats(), y);
      return outside < 0 ? absl::OkStatus() : RowOutside(shape.rows, outside, at[outside]);
    });
  }
  void Backward(int width, const RowGroups& groups, ConstSpan dy, Span gradient, Stream& stream) override {
    PSRING_CHECK(groups.begin.size() == groups.slots.size() + 1 && groups.begin.back() == groups.bags.size());
    for (const int32_t slot : groups.slots) PSRING_CHECK((size_t(slot) + 1) * width <= gradient.count);
    for (const int32_t bag : groups.bags) PSRING_CHECK((size_t(bag) + 1) * width <= dy.count);
    CheckActivations({dy});
    RunOnCpu(stream, [=] { BagsBackward(static_cast<size_t>(width), groups, dy, gradient.floats()); });
  }
};

class CpuDots : public CpuFamily<DotOps> {
 public:
  using CpuFamily::CpuFamily;

  void Forward(const DotShape& shape, ConstSpan a, ConstSpan b, Span y, Stream& stream) override {
    CheckDots(shape, a, b, y);
    CheckActivations({a, b, y});
    RunOnCpu(stream, [=] { DotsForward(shape, a, b, y); });
  }
  void Backward(const DotShape& shape, ConstSpan a, ConstSpan b, ConstSpan dy, Span da, Span db,
                Stream& stream) override {
    CheckDots(shape, a, b, dy);
    CheckDots(shape, da, db, dy);
    CheckActivations({a, b, dy, da, db});
    RunOnCpu(stream, [=] { DotsBackward(shape, a, b, dy, da, db); });
  }
};

}  // namespace

std::unique_ptr<BagOps> MakeCpuBags(DType activations) { return std::make_unique<CpuBags>(activations); }
std::unique_ptr<DotOps> MakeCpuDots(DType activations) { return std::make_unique<CpuDots>(activations); }

}  // namespace psring
