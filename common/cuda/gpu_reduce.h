// The reductions of collectives on a GPU, with the same bits as cpu::Reduce (reduce.h). Sources may be in
// other GPUs' memory; the kernel then reads them over the link. C++17, since CUDA's compilers read it too;
// tests run it in plain loops.
#pragma once

#include <array>
#include <cstddef>
#include <variant>

#include "common/cuda/gpu_packs.h"
#include "common/kernels/dtype.h"

namespace psring::gpu {

// The most sources of one kernel, whose arguments are passed by value.
inline constexpr int kMaxTerms = 64;

struct Terms {
  const void* at[kMaxTerms];
  int count;
};

// to[i] = terms[0][i] op terms[1][i] op ..., from left to right, in float32, rounded once. `to` may equal one
// of the terms; otherwise memory must not overlap.
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
    const Pack<T> first = TermAt(0, at);
    for (size_t j = 0; j < n; ++j) sum[j] = elementwise::Load(first.at[j]);
    for (int k = 1; k < terms.count; ++k) {
      const Pack<T> next = TermAt(k, at);
      for (size_t j = 0; j < n; ++j) sum[j] = Op()(sum[j], elementwise::Load(next.at[j]));
    }
    Pack<T> result;
    for (size_t j = 0; j < n; ++j) result.at[j] = elementwise::Store<T>(sum[j]);
    PackAt(to + at) = result;
  }
  std::array<const void*, kMaxTerms + 1> walks() const {
    std::array<const void*, kMaxTerms + 1> all;
    all.fill(to);
    for (int k = 0; k < terms.count; ++k) all[static_cast<size_t>(k)] = terms.at[k];
    return all;
  }

 private:
  PSRING_HOST_DEVICE Pack<T> TermAt(int k, size_t at) const {
    return PackAt(static_cast<const T*>(terms.at[k]) + at);
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
    Pack<T>& pack = PackAt(to + at);
    Pack<T> result = pack;
    for (T& value : result.at) value = elementwise::Store<T>(elementwise::Load(value) * factor);
    pack = result;
  }
  std::array<const void*, 1> walks() const { return {to}; }
};

using elementwise::BFloat16;
using elementwise::Float16;
using elementwise::Max;
using elementwise::Min;
using elementwise::Sum;

using ReduceKernel =
    std::variant<Reduce<Sum, float>, Reduce<Min, float>, Reduce<Max, float>, Reduce<Sum, BFloat16>,
                 Reduce<Min, BFloat16>, Reduce<Max, BFloat16>, Reduce<Sum, Float16>, Reduce<Min, Float16>,
                 Reduce<Max, Float16>, Scale<float>, Scale<BFloat16>, Scale<Float16>>;

}  // namespace psring::gpu
