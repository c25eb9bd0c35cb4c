#include "common/ops/cpu_ops.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "common/base/check.h"
#include "common/ops/cpu_kernels.h"
#include "common/ops/gradient_norm.h"
#include "common/reduce/reduce.h"

namespace psring {
namespace {

const cpu::BFloat16Bits* Bits(ConstSpan span) { return static_cast<const cpu::BFloat16Bits*>(span.data); }
cpu::BFloat16Bits* Bits(Span span) { return static_cast<cpu::BFloat16Bits*>(span.data); }

// take(first, floats, count) for each block of `values`, of any type.
template <typename Take>
void ForEachBlock(ConstSpan values, const Take& take) {
  if (values.type == DType::kFloat32) return take(size_t{0}, values.floats(), values.count);
  float block[4096];
  for (size_t at = 0; at < values.count; at += std::size(block)) {
    const ConstSpan part = values.Slice(at, std::min(std::size(block), values.count - at));
    cpu::Convert(part.type, part.data, DType::kFloat32, block, part.count);
    take(at, block, part.count);
  }
}

}  // namespace

void CpuOps::Convert(ConstSpan from, Span to, Stream& stream) {
  PSRING_CHECK(from.count == to.count);
  stream.Run([=] {
    cpu::Convert(from.type, from.data, to.type, to.data, to.count);
    return absl::OkStatus();
  });
}

void CpuOps::MaxPoolForward(const PoolShape& shape, ConstSpan x, Span y, uint8_t* argmax, Stream& stream) {
  CheckPool(shape, y.count, x.count);
  PSRING_CHECK(x.type == y.type && x.type == activations());
  stream.Run([=] {
    if (x.type == DType::kBFloat16) {
      cpu::MaxPoolForward(shape, Bits(x), Bits(y), argmax);
    } else {
      cpu::MaxPoolForward(shape, x.floats(), y.floats(), argmax);
    }
    return absl::OkStatus();
  });
}

void CpuOps::MaxPoolBackward(const PoolShape& shape, ConstSpan dy, const uint8_t* argmax, Span dx,
                             Stream& stream) {
  CheckPool(shape, dy.count, dx.count);
  PSRING_CHECK(dx.type == dy.type && dx.type == activations());
  stream.Run([=] {
    if (dx.type == DType::kBFloat16) {
      cpu::MaxPoolBackward(shape, Bits(dy), argmax, Bits(dx));
    } else {
      cpu::MaxPoolBackward(shape, dy.floats(), argmax, dx.floats());
    }
    return absl::OkStatus();
  });
}

void CpuOps::SoftmaxCrossEntropy(int batch, int classes, ConstSpan logits, const uint8_t* labels,
                                 Span dlogits, double* loss_sum, int64_t* correct, Stream& stream) {
  PSRING_CHECK(logits.count == size_t(batch) * classes);
  PSRING_CHECK(dlogits.data == nullptr || dlogits.count == logits.count);
  PSRING_CHECK(logits.type == activations() && (dlogits.data == nullptr || dlogits.type == logits.type));
  stream.Run([=] {
    if (logits.type == DType::kFloat32) {
      cpu::SoftmaxCrossEntropy(batch, classes, logits.floats(), labels, dlogits.floats(), loss_sum, correct);
      return absl::OkStatus();
    }
    // Computed in float32: a loss is a difference of logarithms.
    std::vector<float> values(logits.count);
    cpu::Convert(logits.type, logits.data, DType::kFloat32, values.data(), values.size());
    cpu::SoftmaxCrossEntropy(batch, classes, values.data(), labels, values.data(), loss_sum, correct);
    if (dlogits.data != nullptr) {
      cpu::Convert(DType::kFloat32, values.data(), dlogits.type, dlogits.data, dlogits.count);
    }
    return absl::OkStatus();
  });
}

void CpuOps::Add(Span to, ConstSpan from, Stream& stream) {
  PSRING_CHECK(to.count == from.count);
  stream.Run([=] {
    ForEachBlock(from, [&](size_t at, const float* values, size_t count) {
      cpu::Add(count, to.floats() + at, values);
    });
    return absl::OkStatus();
  });
}

void CpuOps::FindNotFinite(ConstSpan values, uint32_t* found, Stream& stream) {
  stream.Run([=] {
    ForEachBlock(values, [&](size_t, const float* block, size_t count) {
      float sum = 0;  // 0, or NaN from the first non-finite value on
      for (size_t i = 0; i < count; ++i) sum += block[i] - block[i];
      if (!(sum == 0)) *found = 1;
    });
    return absl::OkStatus();
  });
}

void CpuOps::AddSquares(ConstSpan values, double* sum, Stream& stream) {
  stream.Run([=] {
    *sum += SumOfSquares(values.floats(), values.count);
    return absl::OkStatus();
  });
}

void CpuOps::Apply(const SgdStep& step, Span weights, ConstSpan gradient, Stream& stream) {
  PSRING_CHECK(weights.count == gradient.count);
  stream.Run([=] {
    cpu::Apply(step, weights.count, weights.floats(), gradient.floats());
    return absl::OkStatus();
  });
}

void CpuOps::Apply(const MomentumStep& step, Span weights, ConstSpan gradient, Span velocity,
                   Stream& stream) {
  PSRING_CHECK(weights.count == gradient.count && weights.count == velocity.count);
  stream.Run([=] {
    cpu::Apply(step, weights.count, weights.floats(), gradient.floats(), velocity.floats());
    return absl::OkStatus();
  });
}

void CpuOps::Apply(const AdamStep& step, Span weights, ConstSpan gradient, Span mean, Span variance,
                   Stream& stream) {
  PSRING_CHECK(weights.count == gradient.count && weights.count == mean.count &&
               weights.count == variance.count);
  stream.Run([=] {
    cpu::Apply(step, weights.count, weights.floats(), gradient.floats(), mean.floats(), variance.floats());
    return absl::OkStatus();
  });
}

}  // namespace psring
