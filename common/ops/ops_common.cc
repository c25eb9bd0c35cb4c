#include "common/ops/ops_common.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

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

void CheckPool(const PoolShape& shape, size_t pooled, size_t full) {
  PSRING_CHECK(shape.height % 2 == 0 && shape.width % 2 == 0);
  PSRING_CHECK(full == size_t(shape.batch) * shape.height * shape.width * shape.channels);
  PSRING_CHECK(pooled == full / 4);
}

void CheckStep(const OptimizerStep& step, Span weights, ConstSpan gradient,
               const std::array<Span, 2>& slots) {
  PSRING_CHECK(weights.count == gradient.count);
  for (size_t i = 0; i < step.index(); ++i) PSRING_CHECK(slots[i].count == weights.count);
}

elementwise::AdamRates RatesOf(const AdamStep& step) {
  return {.scale = step.gradient_scale,
          .beta1 = step.beta1,
          .beta2 = step.beta2,
          .epsilon = step.epsilon,
          .rate = step.learning_rate / step.bias_correction1,
          .root_correction = 1 / std::sqrt(step.bias_correction2)};
}

absl::StatusOr<Precision> ParsePrecision(const std::string& name) {
  if (name == "float32") return Precision::kFloat32;
  if (name == "tf32") return Precision::kTf32;
  if (name == "bfloat16") return Precision::kBFloat16;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown precision '", name, "'; use float32, tf32 or bfloat16"));
}

}  // namespace psring
