#pragma once

#include <string>
#include <vector>

#include "trainer/layers/layer.h"

namespace psring {

struct LinearConfig {
  int inputs, outputs;
  int rows = 1;  // of a sample, such as the tokens of a text
  Activation activation = Activation::kNone;
  bool residual = false;  // the layer has a second input, which it adds to y; only with kNone
  ImageShape image = {};  // the shape of a row of x, if it is an image
  // Above 0: initial weights are normal with this deviation, and biases 0, as in GPT-2. 0: PyTorch's default.
  float deviation = 0;
};

// y = activation(x w^T + b) + residual, for each row. The gradient of the residual input is that of y.
class LinearLayer : public Layer {
 public:
  LinearLayer(const std::string& name, const LinearConfig& config, ParameterLayout& layout)
      : LinearLayer(config, WeightAndBias::In(layout, name, {config.outputs, config.inputs}, config.image)) {}
  // Without a bias, and with the weight [outputs][inputs] of another layer, which initializes it (tied
  // embeddings: Press & Wolf 2017).
  LinearLayer(const LinearConfig& config, const Tensor& weight)
      : LinearLayer(config, WeightAndBias{.weight = weight, .bias = {}}) {}

  void Initialize(Random& random, std::vector<float>& weights) const override;
  absl::Status Forward(const LayerPass& pass) const override;
  absl::Status BackwardInput(const LayerPass& pass) const override;
  absl::Status BackwardWeight(const LayerPass& pass) const override;

 private:
  LinearLayer(const LinearConfig& config, const WeightAndBias& parameters);

  bool is_tied() const { return parameters_.bias.count == 0; }
  LinearShape ShapeFor(int batch) const;
  // The input of GELU, which forward keeps.
  Span KeptOf(const LayerPass& pass) const;

  const LinearConfig config_;
  const WeightAndBias parameters_;
};

}  // namespace psring
