// Reductions of 16-bit types in vector registers, for processors that convert float16 in hardware: compilers
// do not generate these instructions. Used only by reduce.cc, which has portable loops with the same bits.
//
// Included by files that are compiled for one instruction set, so it must not include headers whose inline
// functions the linker could then share with other files.
#pragma once

#include <cstddef>

#include "common/kernels/sixteen_bits.h"  // always inlined

namespace psring::cpu {

using elementwise::BFloat16;
using elementwise::Float16;

// Elements that the kernels process at a time; their `count` is a multiple of it.
constexpr size_t kRun = 64;

struct VectorKernels {
  // As Reduce, for at least two sources.
  using ReduceRuns = void (*)(size_t count, void* to, const void* const* sources, int source_count);
  // As Scale.
  using ScaleRuns = void (*)(size_t count, void* data, float factor);
  struct OneType {
    ReduceRuns sum, min, max;
    ScaleRuns scale;
  };
  OneType bfloat16, float16;
};

// The best kernels for this processor; null if there are none.
const VectorKernels* BestVectorKernels();

// By instruction set: reduce_avx2.cc (with F16C), reduce_avx512.cc.
extern const VectorKernels kAvx2Kernels;
extern const VectorKernels kAvx512Kernels;

// The kernels of one instruction set. `Lanes` has a Vector of `width` floats and Load, Store, Add, Min, Max,
// Multiply, Broadcast; Min and Max return NaN if either side is NaN. `Lanes` must have internal linkage.
template <typename Lanes>
struct VectorLoops {
  using Vector = typename Lanes::Vector;
  static constexpr int kVectors = 4;  // in flight together, to amortize the loop over the sources
  static constexpr size_t kStep = kVectors * Lanes::width;
  static_assert(kRun % kStep == 0);

  template <typename T, Vector (*combine)(Vector, Vector)>
  static void Reduce(size_t count, void* to, const void* const* sources, int source_count) {
    for (size_t i = 0; i < count; i += kStep) {
      Vector values[kVectors];
      const T* const first = static_cast<const T*>(sources[0]) + i;
      for (int v = 0; v < kVectors; ++v) values[v] = Lanes::Load(first + v * Lanes::width);
      for (int s = 1; s < source_count; ++s) {
        const T* const source = static_cast<const T*>(sources[s]) + i;
        for (int v = 0; v < kVectors; ++v) {
          values[v] = combine(values[v], Lanes::Load(source + v * Lanes::width));
        }
      }
      for (int v = 0; v < kVectors; ++v) {
        Lanes::Store(static_cast<T*>(to) + i + v * Lanes::width, values[v]);
      }
    }
  }

  template <typename T>
  static void Scale(size_t count, void* data, float factor) {
    const Vector factors = Lanes::Broadcast(factor);
    for (size_t i = 0; i < count; i += Lanes::width) {
      T* const values = static_cast<T*>(data) + i;
      Lanes::Store(values, Lanes::Multiply(Lanes::Load(values), factors));
    }
  }

  template <typename T>
  static constexpr VectorKernels::OneType OneType() {
    return {Reduce<T, Lanes::Add>, Reduce<T, Lanes::Min>, Reduce<T, Lanes::Max>, Scale<T>};
  }
};

}  // namespace psring::cpu
