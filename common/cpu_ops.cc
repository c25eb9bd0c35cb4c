#include "common/cpu_ops.h"

#include <vector>

#include "common/check.h"
#include "common/cpu_kernels.h"
#include "common/reduce.h"

namespace psring {

void CheckForward(const LinearShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan y) {
  const size_t batch = shape.batch, inputs = shape.inputs, outputs = shape.outputs;
  PSRING_CHECK(x.count == batch * inputs);
  PSRING_CHECK(weight.count == outputs * inputs);
  PSRING_CHECK(bias.count == outputs);
  PSRING_CHECK(y.count == batch * outputs);
}

void CheckForward(const ConvShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan y) {
  PSRING_CHECK(shape.out_height() > 0 && shape.out_width() > 0);
  const size_t batch = shape.batch, in = shape.in_channels, out = shape.out_channels, kernel = shape.kernel;
  PSRING_CHECK(x.count == batch * shape.height * shape.width * in);
  PSRING_CHECK(weight.count == out * kernel * kernel * in);
  PSRING_CHECK(bias.count == out);
  PSRING_CHECK(y.count == batch * shape.out_height() * shape.out_width() * out);
}

void CheckBackward(ConstSpan x, ConstSpan weight, ConstSpan y, ConstSpan dy, ConstSpan dx,
                   ConstSpan dweight) {
  PSRING_CHECK(dy.count == y.count);
  PSRING_CHECK(dx.data == nullptr || dx.count == x.count);
  PSRING_CHECK(dweight.count == weight.count);
}

namespace {

const cpu::BFloat16Bits* Bits(ConstSpan span) { return static_cast<const cpu::BFloat16Bits*>(span.data); }
cpu::BFloat16Bits* Bits(Span span) { return static_cast<cpu::BFloat16Bits*>(span.data); }

// The pooled side has a quarter of the elements.
void CheckPool(const PoolShape& shape, size_t pooled, size_t full) {
  PSRING_CHECK(shape.height % 2 == 0 && shape.width % 2 == 0);
  PSRING_CHECK(full == size_t(shape.batch) * shape.height * shape.width * shape.channels);
  PSRING_CHECK(pooled == full / 4);
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
    // In float32 inside: a loss is a difference of logarithms.
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
    cpu::Add(to.count, to.floats(), from.floats());
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
