#include "common/ops/ops_common.h"

#include "common/base/check.h"
#include "common/base/errors.h"

namespace psring {

LayerCounts CountsOf(const LinearShape& shape) {
  const size_t batch = shape.batch, inputs = shape.inputs, outputs = shape.outputs;
  return {batch * inputs, outputs * inputs, outputs, batch * outputs};
}

LayerCounts CountsOf(const ConvShape& shape) {
  PSRING_CHECK(shape.stride > 0 && shape.padding >= 0 && shape.padding < shape.kernel);
  PSRING_CHECK(shape.height + 2 * shape.padding >= shape.kernel);
  PSRING_CHECK(shape.width + 2 * shape.padding >= shape.kernel);
  const size_t batch = shape.batch, in = shape.in_channels, out = shape.out_channels, kernel = shape.kernel;
  return {batch * shape.height * shape.width * in, out * kernel * kernel * in, out,
          batch * shape.out_height() * shape.out_width() * out};
}

void CheckForward(const LayerCounts& counts, Activation activation, ConstSpan x, ConstSpan weight,
                  ConstSpan bias, ConstSpan y) {
  PSRING_CHECK(x.count == counts.x);
  PSRING_CHECK(weight.count == counts.weight);
  PSRING_CHECK(bias.data == nullptr ? activation == Activation::kNone : bias.count == counts.bias);
  PSRING_CHECK(y.count == counts.y);
}

void CheckForward(const LinearShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan residual,
                  ConstSpan y, ConstSpan saved) {
  CheckForward(CountsOf(shape), shape.activation, x, weight, bias, y);
  PSRING_CHECK(residual.data == nullptr || shape.activation == Activation::kNone);
  PSRING_CHECK(residual.data == nullptr || residual.count == y.count);
  PSRING_CHECK(shape.activation != Activation::kGelu || saved.count == y.count);
}

void CheckBackwardInput(const LayerCounts& counts, Activation activation, ConstSpan weight, ConstSpan saved,
                        ConstSpan dy, ConstSpan dx, ConstSpan dbias) {
  PSRING_CHECK(weight.count == counts.weight);
  PSRING_CHECK(activation == Activation::kNone || saved.count == counts.y);
  PSRING_CHECK(dy.count == counts.y);
  PSRING_CHECK(dx.data == nullptr || dx.count == counts.x);
  PSRING_CHECK(dbias.data == nullptr ? activation == Activation::kNone : dbias.count == counts.bias);
}

void CheckBackwardWeight(const LayerCounts& counts, ConstSpan x, ConstSpan dy, ConstSpan dweight) {
  PSRING_CHECK(x.count == counts.x);
  PSRING_CHECK(dy.count == counts.y);
  PSRING_CHECK(dweight.count == counts.weight);
}

void CheckAverage(const PoolShape& shape, ConstSpan full, ConstSpan pooled) {
  PSRING_CHECK(pooled.count == size_t(shape.batch) * shape.channels);
  PSRING_CHECK(full.count == pooled.count * shape.height * shape.width);
}

void CheckLoss(int batch, int classes, ConstSpan logits, ConstSpan dlogits) {
  PSRING_CHECK(logits.count == size_t(batch) * classes);
  PSRING_CHECK(dlogits.data == nullptr || dlogits.count == logits.count);
}

void CheckTypes(DType type, std::initializer_list<ConstSpan> spans) {
  for (const ConstSpan& span : spans) PSRING_CHECK(span.data == nullptr || span.type == type);
}

int RowsOfAll(const EmbeddingShape& shape) { return shape.all > 0 ? shape.all : shape.rows; }

absl::Status IndexOutside(const EmbeddingShape& shape, int position, int32_t index) {
  return InvalidArgument("embedding: index ", index, " at position ", position, " is outside a table of ",
                         RowsOfAll(shape), " rows");
}

absl::Status RowOutside(int rows, int lookup, int32_t row) {
  return InvalidArgument("table: row ", row, " of lookup ", lookup, " of the batch is outside a table of ",
                         rows, " rows");
}

absl::Status LabelOutside(int classes, int row, int32_t label) {
  return InvalidArgument("loss: label ", label, " of row ", row, " is none of ", classes, " classes");
}

void CheckPool(const PoolShape& shape, size_t pooled, size_t full) {
  PSRING_CHECK(shape.height % 2 == 0 && shape.width % 2 == 0);
  PSRING_CHECK(full == size_t(shape.batch) * shape.height * shape.width * shape.channels);
  PSRING_CHECK(pooled == full / 4);
}

void CheckStep(const OptimizerStep& step, Span weights, ConstSpan gradient,
               const std::array<Span, 2>& slots) {
  PSRING_CHECK(weights.count == gradient.count);
  for (size_t i = 0; i < SlotsOf(step); ++i) PSRING_CHECK(slots[i].count == weights.count);
}

absl::StatusOr<Precision> ParsePrecision(const std::string& name) {
  if (name == "float32") return Precision::kFloat32;
  if (name == "tf32") return Precision::kTf32;
  if (name == "bfloat16") return Precision::kBFloat16;
  return InvalidArgument("unknown precision '", name, "'; use float32, tf32 or bfloat16");
}

}  // namespace psring
