#pragma once

#include <string>

#include "trainer/layers/layer.h"

namespace psring {

struct ConvConfig {
  ConvShape shape;  // its batch is ignored
  bool bias = true;
  // Above 0: initial weights are normal with this deviation. 0: PyTorch's default.
  float deviation = 0;
};

// A convolution with the activation of its shape.
class ConvLayer : public Layer {
 public:
  ConvLayer(const std::string& name, const ConvConfig& config, ParameterLayout& layout);

  void Initialize(Random& random, std::vector<float>& weights) const override;
  absl::Status Forward(const LayerPass& pass) const override;
  absl::Status BackwardInput(const LayerPass& pass) const override;
  absl::Status BackwardWeight(const LayerPass& pass) const override;

 private:
  ConvLayer(const ConvConfig& config, const WeightAndBias& parameters);
  ConvShape ShapeFor(int batch) const;
  bool has_bias() const { return parameters_.bias.count > 0; }

  const ConvConfig config_;
  const WeightAndBias parameters_;
};

}  // namespace psring
