#pragma once

#include <string>

#include "trainer/layers/layer.h"

namespace psring {

// y = x w^T + b, followed by ReLU if `relu`. `image`: the shape of x, if it is an image.
class LinearLayer : public Layer {
 public:
  LinearLayer(const std::string& name, int inputs, int outputs, bool relu, ParameterLayout& layout,
              ImageShape image = {});

  ReadyRange parameters() const override { return parameters_.range(); }
  void Initialize(Random& random, std::vector<float>& weights) const override;
  void Forward(int batch, ConstSpan weights, ConstSpan x, Ops& ops, Stream& stream) override;
  void Backward(int batch, ConstSpan weights, ConstSpan x, Span dx, Span gradient, Ops& ops,
                Stream& stream) override;

 private:
  const LinearShape shape_;  // of one sample
  const WeightAndBias parameters_;
};

}  // namespace psring
