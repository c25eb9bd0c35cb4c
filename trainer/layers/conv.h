#pragma once

#include <string>

#include "trainer/layers/layer.h"

namespace psring {

// A convolution with stride 1, no padding, and `shape.activation`.
class ConvLayer : public Layer {
 public:
  // `shape.batch` is ignored.
  ConvLayer(const std::string& name, const ConvShape& shape, ParameterLayout& layout);

  ReadyRange parameters() const override { return parameters_.range(); }
  void Initialize(Random& random, std::vector<float>& weights) const override;
  void Forward(int batch, ConstSpan weights, ConstSpan x, Ops& ops, Stream& stream) override;
  void Backward(int batch, ConstSpan weights, ConstSpan x, Span dx, Span gradient, Ops& ops,
                Stream& stream) override;

 private:
  const ConvShape shape_;
  const WeightAndBias parameters_;
};

}  // namespace psring
