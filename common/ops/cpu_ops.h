// The ops that all CPU implementations of Ops share; derived classes add the other families.
#pragma once

#include <algorithm>
#include <iterator>

#include "common/base/check.h"
#include "common/kernels/reduce.h"
#include "common/ops/cpu_kernels.h"
#include "common/ops/cpu_layers.h"
#include "common/ops/gradient_norm.h"

namespace psring {

class CpuOps : public Ops {
 public:
  explicit CpuOps(DType activations = DType::kFloat32) { families_.pooling = MakeCpuPooling(activations); }

  void Convert(ConstSpan from, Span to, Stream& stream) override {
    PSRING_CHECK(from.count == to.count);
    RunOnCpu(stream, [=] { cpu::Convert(from.type, from.data, to.type, to.data, to.count); });
  }

  void Add(Span to, ConstSpan from, Stream& stream) override {
    PSRING_CHECK(to.count == from.count);
    RunOnCpu(stream, [=] {
      ForEachBlock(from, [&](size_t at, const float* values, size_t count) {
        cpu::Add(count, to.floats() + at, values);
      });
    });
  }

  void FindNotFinite(ConstSpan values, uint32_t* found, Stream& stream) override {
    RunOnCpu(stream, [=] {
      ForEachBlock(values, [&](size_t, const float* block, size_t count) {
        float sum = 0;  // 0, or NaN from the first non-finite value on
        for (size_t i = 0; i < count; ++i) sum += block[i] - block[i];
        if (!(sum == 0)) *found = 1;
      });
    });
  }

  void AddSquares(ConstSpan values, double* sum, Stream& stream) override {
    RunOnCpu(stream, [=] { *sum += SumOfSquares(values.floats(), values.count); });
  }

  void Apply(const OptimizerStep& step, Span weights, ConstSpan gradient, const std::array<Span, 2>& slots,
             Stream& stream) override {
    CheckStep(step, weights, gradient, slots);
    RunOnCpu(stream, [=] {
      cpu::Apply(step, weights.count, weights.floats(), gradient.floats(), slots[0].floats(),
                 slots[1].floats());
    });
  }

 private:
  // take(first, floats, count) for each block of `values`, of any type.
  template <typename Take>
  static void ForEachBlock(ConstSpan values, const Take& take) {
    if (values.type == DType::kFloat32) return take(size_t{0}, values.floats(), values.count);
    float block[4096];
    for (size_t at = 0; at < values.count; at += std::size(block)) {
      const ConstSpan part = values.Slice(at, std::min(std::size(block), values.count - at));
      cpu::Convert(part.type, part.data, DType::kFloat32, block, part.count);
      take(at, block, part.count);
    }
  }
};

}  // namespace psring
