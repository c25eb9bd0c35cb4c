#pragma once

#include <string>

#include "trainer/layers/layer.h"

namespace psring {

// A convolution with stride 1, no padding, and `shape.activation`.
class ConvLayer : public Layer {
 public:
  // `shape.batch` is ignored.
  ConvLayer(const std::string& name, const ConvShape& shape, ParameterLayout& layout);

  void Initialize(Random& random, std::vector<float>& weights) const override {
    parameters_.Initialize(random, weights);
  }
  absl::Status Forward(const LayerPass& pass) const override;
  absl::Status BackwardInput(const LayerPass& pass) const override;
  absl::Status BackwardWeight(const LayerPass& pass) const override;

 private:
  ConvLayer(const ConvShape& shape, const WeightAndBias& parameters);
  ConvShape ShapeFor(int batch) const;

  const ConvShape shape_;
  const WeightAndBias parameters_;
};

}  // namespace psring
