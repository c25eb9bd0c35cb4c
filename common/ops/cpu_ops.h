// The ops that all CPU implementations of Ops share; derived classes add the families linear and convolution.
#pragma once

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

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
    PSRING_CHECK(x.type == y.type && x.type == type_);
    RunOnCpu(stream, [=] { cpu::MaxPoolForward(shape, x, y, argmax); });
  }

  void MaxBackward(const PoolShape& shape, ConstSpan dy, const uint8_t* argmax, Span dx,
                   Stream& stream) override {
    CheckPool(shape, dy.count, dx.count);
    PSRING_CHECK(dx.type == dy.type && dx.type == type_);
    RunOnCpu(stream, [=] { cpu::MaxPoolBackward(shape, dy, argmax, dx); });
  }

 private:
  const DType type_;
};

class CpuLoss : public LossOps {
 public:
  explicit CpuLoss(DType activations) : type_(activations) {}

  void SoftmaxCrossEntropy(int batch, int classes, ConstSpan logits, const int32_t* labels, Span dlogits,
                           double* loss_sum, int64_t* correct, Stream& stream) override {
    PSRING_CHECK(logits.count == size_t(batch) * classes);
    PSRING_CHECK(dlogits.data == nullptr || dlogits.count == logits.count);
    PSRING_CHECK(logits.type == type_ && (dlogits.data == nullptr || dlogits.type == logits.type));
    RunOnCpu(stream, [=] {
      if (logits.type == DType::kFloat32) {
        cpu::SoftmaxCrossEntropy(batch, classes, logits.floats(), labels, dlogits.floats(), loss_sum,
                                 correct);
        return;
      }
      // Computed in float32: a loss is a difference of logarithms.
      std::vector<float> values(logits.count);
      cpu::Convert(logits.type, logits.data, DType::kFloat32, values.data(), values.size());
      cpu::SoftmaxCrossEntropy(batch, classes, values.data(), labels, values.data(), loss_sum, correct);
      if (dlogits.data != nullptr) {
        cpu::Convert(DType::kFloat32, values.data(), dlogits.type, dlogits.data, dlogits.count);
      }
    });
  }

 private:
  const DType type_;
};

class CpuOps : public Ops {
 public:
  explicit CpuOps(DType activations = DType::kFloat32) : pooling_(activations), loss_(activations) {
    families_.pooling = &pooling_;
    families_.loss = &loss_;
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
  CpuLoss loss_;
};

}  // namespace psring
