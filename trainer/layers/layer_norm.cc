#include <algorithm>

#include "trainer/layers/layers.h"

namespace psring {
namespace {

class LayerNormLayer : public Layer {
 public:
  LayerNormLayer(int rows, const WeightAndBias& parameters, const TensorPlace& place)
      : Layer(
            {.outputs = static_cast<size_t>(rows) * parameters.weight.count,
             .kept_bytes = 2 * sizeof(float) * static_cast<size_t>(rows),
             .parameters = parameters.range(),
             .early = parameters.range().count,
             .inputs = {InputGradient::kAddable},
             .sends = {.of_batch = place.divides_rows ? 2 * place.SentByHalf(parameters.range().count) : 0}}),
        rows_(rows),
        parameters_(parameters),
        place_(place) {}

  void Initialize(Random&, float* own) const override { std::fill_n(own, parameters_.weight.count, 1.0f); }
  absl::Status Forward(const LayerPass& pass) const override {
    pass.ops.families().normalization->LayerNormForward(
        ShapeFor(pass.batch), pass.x[0], Part(pass.weights, parameters_.weight),
        Part(pass.weights, parameters_.bias), pass.y, StatisticsOf(pass), pass.stream);
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerPass& pass) const override {
    pass.ops.families().normalization->LayerNormBackward(
        ShapeFor(pass.batch), pass.x[0], Part(pass.weights, parameters_.weight), StatisticsOf(pass), pass.dy,
        pass.dx[0], pass.adds[0], Part(pass.gradient, parameters_.weight),
        Part(pass.gradient, parameters_.bias), pass.stream);
    // That of this rank's rows.
    return place_.divides_rows ? place_.axis->Sum(pass.gradient, pass.stream) : absl::OkStatus();
  }
  absl::Status BackwardWeight(const LayerPass&) const override { return absl::OkStatus(); }

 private:
  LayerNormShape ShapeFor(int batch) const {
    return {.rows = batch * rows_, .width = static_cast<int>(parameters_.weight.count)};
  }
  // The mean and 1 / deviation of each row, which forward keeps.
  Span StatisticsOf(const LayerPass& pass) const {
    return {pass.kept, size_t{2} * pass.batch * rows_, DType::kFloat32};
  }

  const int rows_;  // on this rank
  const WeightAndBias parameters_;
  const TensorPlace place_;
};

}  // namespace

std::unique_ptr<Layer> MakeLayerNorm(const std::string& name, int rows, int width, ParameterLayout& layout,
                                     const TensorPlace& place) {
  return std::make_unique<LayerNormLayer>(place.OwnRows(rows), WeightAndBias::In(layout, name, {width}),
                                          place);
}

}  // namespace psring
