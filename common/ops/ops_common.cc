#include "common/ops/ops_common.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace psring {

namespace {

struct Counts {
  size_t x, weight, bias, y;
};

Counts CountsOf(const LinearShape& shape) {
  const size_t batch = shape.batch, inputs = shape.inputs, outputs = shape.outputs;
  return {batch * inputs, outputs * inputs, outputs, batch * outputs};
}

Counts CountsOf(const ConvShape& shape) {
  PSRING_CHECK(shape.out_height() > 0 && shape.out_width() > 0);
  const size_t batch = shape.batch, in = shape.in_channels, out = shape.out_channels, kernel = shape.kernel;
  return {batch * shape.height * shape.width * in, out * kernel * kernel * in, out,
          batch * shape.out_height() * shape.out_width() * out};
}

void CheckForward(const Counts& counts, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan y) {
  PSRING_CHECK(x.count == counts.x);
  PSRING_CHECK(weight.count == counts.weight);
  PSRING_CHECK(bias.count == counts.bias);
  PSRING_CHECK(y.count == counts.y);
}

void CheckBackwardInput(const Counts& counts, Activation activation, ConstSpan weight, ConstSpan saved,
                        ConstSpan dy, ConstSpan dx, ConstSpan dbias) {
  PSRING_CHECK(weight.count == counts.weight);
  PSRING_CHECK(activation == Activation::kNone || saved.count == counts.y);
  PSRING_CHECK(dy.count == counts.y);
  PSRING_CHECK(dx.data == nullptr || dx.count == counts.x);
  PSRING_CHECK(dbias.count == counts.bias);
}

void CheckBackwardWeight(const Counts& counts, ConstSpan x, ConstSpan dy, ConstSpan dweight) {
  PSRING_CHECK(x.count == counts.x);
  PSRING_CHECK(dy.count == counts.y);
  PSRING_CHECK(dweight.count == counts.weight);
}

}  // namespace

void CheckForward(const LinearShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan y) {
  CheckForward(CountsOf(shape), x, weight, bias, y);
}
void CheckForward(const ConvShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan y) {
  CheckForward(CountsOf(shape), x, weight, bias, y);
}
void CheckBackwardInput(const LinearShape& shape, ConstSpan weight, ConstSpan saved, ConstSpan dy,
                        ConstSpan dx, ConstSpan dbias) {
  CheckBackwardInput(CountsOf(shape), shape.activation, weight, saved, dy, dx, dbias);
}
void CheckBackwardInput(const ConvShape& shape, ConstSpan weight, ConstSpan saved, ConstSpan dy, ConstSpan dx,
                        ConstSpan dbias) {
  CheckBackwardInput(CountsOf(shape), shape.activation, weight, saved, dy, dx, dbias);
}
void CheckBackwardWeight(const LinearShape& shape, ConstSpan x, ConstSpan dy, ConstSpan dweight) {
  CheckBackwardWeight(CountsOf(shape), x, dy, dweight);
}
void CheckBackwardWeight(const ConvShape& shape, ConstSpan x, ConstSpan dy, ConstSpan dweight) {
  CheckBackwardWeight(CountsOf(shape), x, dy, dweight);
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
