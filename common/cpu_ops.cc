#include "common/cpu_ops.h"

#include "common/check.h"
#include "common/cpu_kernels.h"
#include "common/gradient_norm.h"

namespace psring {

void CpuOps::MaxPoolForward(const PoolShape& shape, ConstSpan x, Span y, uint8_t* argmax, Stream& stream) {
  CheckPool(shape, y.count, x.count);
  stream.Run([=] {
    cpu::MaxPoolForward(shape, x.floats(), y.floats(), argmax);
    return absl::OkStatus();
  });
}

void CpuOps::MaxPoolBackward(const PoolShape& shape, ConstSpan dy, const uint8_t* argmax, Span dx,
                             Stream& stream) {
  CheckPool(shape, dy.count, dx.count);
  stream.Run([=] {
    cpu::MaxPoolBackward(shape, dy.floats(), argmax, dx.floats());
    return absl::OkStatus();
  });
}

void CpuOps::SoftmaxCrossEntropy(int batch, int classes, ConstSpan logits, const uint8_t* labels,
                                 Span dlogits, double* loss_sum, int64_t* correct, Stream& stream) {
  PSRING_CHECK(logits.count == size_t(batch) * classes);
  PSRING_CHECK(dlogits.data == nullptr || dlogits.count == logits.count);
  stream.Run([=] {
    cpu::SoftmaxCrossEntropy(batch, classes, logits.floats(), labels, dlogits.floats(), loss_sum, correct);
    return absl::OkStatus();
  });
}

void CpuOps::Add(Span to, ConstSpan from, Stream& stream) {
  PSRING_CHECK(to.count == from.count);
  stream.Run([=] {
    cpu::Add(to.count, to.floats(), from.floats());
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
