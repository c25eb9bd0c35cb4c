// The ops that all CPU implementations of Ops share; derived classes add the other families.
#pragma once

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/check.h"
#include "common/ops/cpu_kernels.h"
#include "common/ops/gradient_norm.h"
#include "common/ops/ops_common.h"
#include "common/reduce/reduce.h"

namespace psring {

// `work` cannot fail.
template <typename Work>
void RunOnCpu(Stream& stream, Work work) {
  stream.Run([work = std::move(work)] {
    work();
    return absl::OkStatus();
  });
}

class CpuPooling : public PoolingOps {
 public:
  explicit CpuPooling(DType activations) : type_(activations) {}

  void MaxForward(const PoolShape& shape, ConstSpan x, Span y, uint8_t* argmax, Stream& stream) override {
    CheckPool(shape, y.count, x.count);
    CheckTypes(type_, {x, y});
    RunOnCpu(stream, [=] { cpu::MaxPoolForward(shape, x, y, argmax); });
  }

  void MaxBackward(const PoolShape& shape, ConstSpan dy, const uint8_t* argmax, Span dx,
                   Stream& stream) override {
    CheckPool(shape, dy.count, dx.count);
    CheckTypes(type_, {dy, dx});
    RunOnCpu(stream, [=] { cpu::MaxPoolBackward(shape, dy, argmax, dx); });
  }

  void AverageForward(const PoolShape& shape, ConstSpan x, Span y, Stream& stream) override {
    CheckAverage(shape, x, y);
    CheckTypes(type_, {x, y});
    RunOnCpu(stream, [=] { cpu::AveragePoolForward(shape, x, y); });
  }

  void AverageBackward(const PoolShape& shape, ConstSpan dy, Span dx, Stream& stream) override {
    CheckAverage(shape, dx, dy);
    CheckTypes(type_, {dy, dx});
    RunOnCpu(stream, [=] { cpu::AveragePoolBackward(shape, dy, dx); });
  }

 private:
  const DType type_;
};

class CpuOps : public Ops {
 public:
  explicit CpuOps(DType activations = DType::kFloat32) : pooling_(activations) {
    families_.pooling = &pooling_;
  }

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
      const size_t count = weights.count;
      float* const w = weights.floats();
      const float* const g = gradient.floats();
      if (const auto* sgd = std::get_if<SgdStep>(&step)) cpu::Apply(*sgd, count, w, g);
      if (const auto* momentum = std::get_if<MomentumStep>(&step)) {
        cpu::Apply(*momentum, count, w, g, slots[0].floats());
      }
      if (const auto* adagrad = std::get_if<AdagradStep>(&step)) {
        cpu::Apply(*adagrad, count, w, g, slots[0].floats());
      }
      if (const auto* adam = std::get_if<AdamStep>(&step)) {
        cpu::Apply(*adam, count, w, g, slots[0].floats(), slots[1].floats());
      }
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

  CpuPooling pooling_;
};

}  // namespace psring
