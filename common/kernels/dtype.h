// The types of elements in device memory and in messages, and the reductions of collectives. C++17, since
// CUDA's compilers read it too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kernels/sixteen_bits.h"

namespace psring {

// float32; bfloat16 (a float32's upper half) and IEEE float16: stored in 16 bits, computed in float32.
enum class DType : uint8_t { kFloat32, kBFloat16, kFloat16 };

constexpr size_t SizeOf(DType type) { return type == DType::kFloat32 ? 4 : 2; }

// f(T()) with the C++ type T of a 16-bit `type`, and of any.
template <typename F>
PSRING_INLINE auto WithHalf(DType type, const F& f) {
  return type == DType::kBFloat16 ? f(elementwise::BFloat16{}) : f(elementwise::Float16{});
}
template <typename F>
PSRING_INLINE auto WithType(DType type, const F& f) {
  return type == DType::kFloat32 ? f(float{}) : WithHalf(type, f);
}

// kMean is the sum divided by the number of ranks.
enum class ReduceOp : uint8_t { kSum, kMean, kMin, kMax };

namespace elementwise {

struct Sum {
  PSRING_EVERYWHERE float operator()(float a, float b) const { return a + b; }
};
// NaN if either side is NaN.
struct Min {
  PSRING_EVERYWHERE float operator()(float a, float b) const { return (b < a) | (b != b) ? b : a; }
};
struct Max {
  PSRING_EVERYWHERE float operator()(float a, float b) const { return (b > a) | (b != b) ? b : a; }
};

}  // namespace elementwise

// f(Sum()), f(Min()) or f(Max()); means are divided later.
template <typename F>
PSRING_INLINE auto WithOp(ReduceOp op, const F& f) {
  return op == ReduceOp::kMin   ? f(elementwise::Min{})
         : op == ReduceOp::kMax ? f(elementwise::Max{})
                                : f(elementwise::Sum{});
}

}  // namespace psring
