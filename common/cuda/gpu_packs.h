// Kernels that process 16 bytes per thread: loads of this size keep enough of them in flight to use the full
// bandwidth of a GPU's memory. C++17, since CUDA's compilers read it too; tests run it in plain loops.
//
// A kernel is a struct with a function of the element's number. One that can work in packs also has Element,
// Wide(at) for the elements of one pack from `at` on, and walks(), the addresses that it reads and writes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kernels/sixteen_bits.h"

namespace psring::gpu {

inline constexpr size_t kPackBytes = 16;

template <typename T>
struct alignas(kPackBytes) Pack {
  static constexpr size_t kCount = kPackBytes / sizeof(T);
  T at[kCount];
};
template <typename T>
PSRING_HOST_DEVICE Pack<T>& PackAt(T* values) {
  return *reinterpret_cast<Pack<T>*>(values);
}
template <typename T>
PSRING_HOST_DEVICE const Pack<T>& PackAt(const T* values) {
  return *reinterpret_cast<const Pack<T>*>(values);
}

// Runs `f` in packs: group 0 is the elements before the first aligned one, each later group is one pack; the
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

// Calls `launch(n, g)` once, where g(0) ... g(n - 1) do what f(0) ... f(count - 1) do: in packs if `f` can
// and all addresses that it walks over have the same offset from a pack's boundary.
template <typename F, typename Launch>
auto LaunchWide(size_t count, const F& f, const Launch& launch) -> decltype(f.walks(), launch(count, f)) {
  constexpr size_t n = Pack<typename F::Element>::kCount;
  const auto walks = f.walks();
  const uintptr_t beyond = reinterpret_cast<uintptr_t>(walks[0]) % kPackBytes;
  for (const void* const other : walks) {
    if (reinterpret_cast<uintptr_t>(other) % kPackBytes != beyond) return launch(count, f);
  }
  const size_t to_boundary = (kPackBytes - beyond) % kPackBytes / sizeof(typename F::Element);
  const size_t head = to_boundary < count ? to_boundary : count;
  return launch(1 + (count - head + n - 1) / n, InPacks<F>{f, head, count});
}
template <typename F, typename Launch, typename... None>
auto LaunchWide(size_t count, const F& f, const Launch& launch, None...) -> decltype(launch(count, f)) {
  return launch(count, f);
}

}  // namespace psring::gpu
