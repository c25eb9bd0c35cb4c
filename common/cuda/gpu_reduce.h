// What a collective does to elements on a GPU: as cpu::Reduce (reduce.h), the same bits. The sources may
// stand in other GPUs' memory, which a kernel then reads over the link as it adds. C++17, since CUDA's
// compilers read it too; tests run it in plain loops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

#include "common/reduce/sixteen_bits.h"

namespace psring::gpu {

// Of one pass: kernels take their arguments by value, and few ranks have more peers.
inline constexpr int kMostTerms = 64;

struct Terms {
  const void* at[kMostTerms];
  int count;
};

struct Sum {
  PSRING_HOST_DEVICE float operator()(float a, float b) const { return a + b; }
};
// A NaN on either side wins.
struct Least {
  PSRING_HOST_DEVICE float operator()(float a, float b) const { return b < a || b != b ? b : a; }
};
struct Most {
  PSRING_HOST_DEVICE float operator()(float a, float b) const { return b > a || b != b ? b : a; }
};

// 16 bytes: what a thread reads of each source at a time.
template <typename T>
struct alignas(16) Pack {
  static constexpr size_t kCount = 16 / sizeof(T);
  T at[kCount];
};

// to[i] = terms[0][i] op terms[1][i] op ..., from left to right, in float32, rounded once. `to` may be one of
// the terms; else memory does not overlap.
template <typename Op, typename T>
struct Reduce {
  using Element = T;
  T* to;
  Terms terms;

  PSRING_HOST_DEVICE void operator()(size_t i) const {
    float value = elementwise::Load(static_cast<const T*>(terms.at[0])[i]);
    for (int k = 1; k < terms.count; ++k) {
      value = Op()(value, elementwise::Load(static_cast<const T*>(terms.at[k])[i]));
    }
    to[i] = elementwise::Store<T>(value);
  }
  PSRING_HOST_DEVICE void Wide(size_t at) const {
    constexpr size_t n = Pack<T>::kCount;
    float sum[n];
    const Pack<T> first = PackAt(0, at);
    for (size_t j = 0; j < n; ++j) sum[j] = elementwise::Load(first.at[j]);
    for (int k = 1; k < terms.count; ++k) {
      const Pack<T> next = PackAt(k, at);
      for (size_t j = 0; j < n; ++j) sum[j] = Op()(sum[j], elementwise::Load(next.at[j]));
    }
    Pack<T> result;
    for (size_t j = 0; j < n; ++j) result.at[j] = elementwise::Store<T>(sum[j]);
    *reinterpret_cast<Pack<T>*>(to + at) = result;
  }
  // Whether all that it walks over lies alike between 16-byte boundaries.
  bool AlignedAlike() const {
    for (int k = 0; k < terms.count; ++k) {
      if ((reinterpret_cast<uintptr_t>(terms.at[k]) - reinterpret_cast<uintptr_t>(to)) % 16 != 0)
        return false;
    }
    return true;
  }

 private:
  PSRING_HOST_DEVICE Pack<T> PackAt(int k, size_t at) const {
    return *reinterpret_cast<const Pack<T>*>(static_cast<const T*>(terms.at[k]) + at);
  }
};

// to[i] *= factor, in float32.
template <typename T>
struct Scale {
  using Element = T;
  T* to;
  float factor;

  PSRING_HOST_DEVICE void operator()(size_t i) const {
    to[i] = elementwise::Store<T>(elementwise::Load(to[i]) * factor);
  }
  PSRING_HOST_DEVICE void Wide(size_t at) const {
    Pack<T>& pack = *reinterpret_cast<Pack<T>*>(to + at);
    Pack<T> result = pack;
    for (T& value : result.at) value = elementwise::Store<T>(elementwise::Load(value) * factor);
    pack = result;
  }
  bool AlignedAlike() const { return true; }
};

// Group 0 is the elements before the first that is aligned, group i the pack behind that of group i - 1; the
// last may be short.
template <typename F>
struct InPacks {
  F f;
  size_t head, count;
  PSRING_HOST_DEVICE void operator()(size_t group) const {
    constexpr size_t n = Pack<typename F::Element>::kCount;
    if (group == 0) {
      for (size_t i = 0; i < head; ++i) f(i);
      return;
    }
    const size_t at = head + n * (group - 1);
    if (count - at >= n) return f.Wide(at);
    for (size_t i = at; i < count; ++i) f(i);
  }
};

// Calls `launch(n, g)` once, where g(0) ... g(n - 1) do what f(0) ... f(count - 1) do: in packs where it can.
template <typename F, typename Launch>
auto LaunchInPacks(size_t count, const F& f, const Launch& launch) {
  constexpr size_t n = Pack<typename F::Element>::kCount;
  const size_t beyond = reinterpret_cast<uintptr_t>(f.to) % 16 / sizeof(typename F::Element);
  if (!f.AlignedAlike()) return launch(count, f);
  const size_t to_boundary = (n - beyond) % n;
  const size_t head = to_boundary < count ? to_boundary : count;
  return launch(1 + (count - head + n - 1) / n, InPacks<F>{f, head, count});
}

using elementwise::BFloat16;
using elementwise::Float16;

using ReduceKernel = std::variant<Reduce<Sum, float>, Reduce<Least, float>, Reduce<Most, float>,
                                  Reduce<Sum, BFloat16>, Reduce<Least, BFloat16>, Reduce<Most, BFloat16>,
                                  Reduce<Sum, Float16>, Reduce<Least, Float16>, Reduce<Most, Float16>,
                                  Scale<float>, Scale<BFloat16>, Scale<Float16>>;

}  // namespace psring::gpu
