// What a GPU would launch and multiply, in plain loops.
#pragma once

#include <algorithm>
#include <cstddef>
#include <variant>

#include "common/gpu_kernels.h"
#include "common/gpu_ops.h"
#include "common/gpu_reduce.h"

namespace psring {

// Backwards: the order of a GPU's threads is nobody's business.
inline void LaunchInLoop(size_t count, const gpu::Kernel& kernel) {
  std::visit(
      [count](const auto& k) {
        gpu::LaunchWide(count, k, [](size_t threads, const auto& thread) {
          for (size_t i = threads; i-- > 0;) thread(i);
        });
      },
      kernel);
}

inline void LaunchInLoop(size_t count, const gpu::ReduceKernel& kernel) {
  if (count == 0) return;
  std::visit(
      [count](const auto& k) {
        gpu::LaunchInPacks(count, k, [](size_t threads, const auto& thread) {
          for (size_t i = threads; i-- > 0;) thread(i);
        });
      },
      kernel);
}

inline void MultiplyInLoops(const MatrixProduct& p) {
  for (size_t row = 0; row < p.m; ++row) {
    for (size_t column = 0; column < p.n; ++column) {
      float& c = p.c[row * p.n + column];
      double sum = p.add ? c : p.bias != nullptr ? p.bias[column] : 0;
      for (size_t i = 0; i < p.k; ++i) {
        sum += double{p.a[p.a_transposed ? i * p.m + row : row * p.k + i]} *
               p.b[p.b_transposed ? column * p.k + i : i * p.n + column];
      }
      c = static_cast<float>(p.relu ? std::max(sum, 0.0) : sum);
    }
  }
}

}  // namespace psring
