#pragma once

#include <string>

#include "trainer/layers/layer.h"

namespace psring {

// y = x w^T + b, followed by ReLU if `relu`. `image`: the shape of x, if it is an image.
class LinearLayer : public Layer {
 public:
  LinearLayer(const std::string& name, int inputs, int outputs, bool relu, ParameterLayout& layout,
              ImageShape image = {});

  void Initialize(Random& random, std::vector<float>& weights) const override {
    parameters_.Initialize(random, weights);
  }
  absl::Status Forward(const LayerPass& pass) const override;
  absl::Status BackwardInput(const LayerPass& pass) const override;
  absl::Status BackwardWeight(const LayerPass& pass) const override;

 private:
  LinearLayer(const LinearShape& shape, const WeightAndBias& parameters);
  LinearShape ShapeFor(int batch) const;

  const LinearShape shape_;  // of one sample
  const WeightAndBias parameters_;
};

}  // namespace psring
