#include "trainer/layers/layer_norm.h"

namespace psring {

LayerNormLayer::LayerNormLayer(int rows, const WeightAndBias& parameters)
    : Layer({.outputs = static_cast<size_t>(rows) * parameters.weight.count,
             .kept_bytes = 2 * sizeof(float) * static_cast<size_t>(rows),
             .parameters = parameters.range(),
             .inputs = {InputGradient::kAddable}}),
      rows_(rows),
      parameters_(parameters) {}

LayerNormShape LayerNormLayer::ShapeFor(int batch) const {
  return {.rows = batch * rows_, .width = static_cast<int>(parameters_.weight.count)};
}

Span LayerNormLayer::StatisticsOf(const LayerPass& pass) const {
  return {pass.kept, size_t{2} * pass.batch * rows_, DType::kFloat32};
}

absl::Status LayerNormLayer::Forward(const LayerPass& pass) const {
  pass.ops.families().normalization->LayerNormForward(
      ShapeFor(pass.batch), pass.x[0], Part(pass.weights, parameters_.weight),
      Part(pass.weights, parameters_.bias), pass.y, StatisticsOf(pass), pass.stream);
  return absl::OkStatus();
}

absl::Status LayerNormLayer::BackwardInput(const LayerPass& pass) const {
  pass.ops.families().normalization->LayerNormBackward(
      ShapeFor(pass.batch), pass.x[0], Part(pass.weights, parameters_.weight), StatisticsOf(pass), pass.dy,
      pass.dx[0], pass.adds[0], Part(pass.gradient, parameters_.weight),
      Part(pass.gradient, parameters_.bias), pass.stream);
  return absl::OkStatus();
}

}  // namespace psring
