#pragma once

#include <string>

#include "trainer/layers/layer.h"

namespace psring {

// Normalizes each row (Ba, Kiros & Hinton 2016), with a weight, initially 1, and a bias, initially 0.
class LayerNormLayer : public Layer {
 public:
  // `rows`: of a sample.
  LayerNormLayer(const std::string& name, int rows, int width, ParameterLayout& layout)
      : LayerNormLayer(rows, WeightAndBias::In(layout, name, {width})) {}

  void Initialize(Random&, std::vector<float>& weights) const override {
    Fill(parameters_.weight, 1, weights);
  }
  absl::Status Forward(const LayerPass& pass) const override;
  absl::Status BackwardInput(const LayerPass& pass) const override;
  absl::Status BackwardWeight(const LayerPass&) const override { return absl::OkStatus(); }

 private:
  LayerNormLayer(int rows, const WeightAndBias& parameters);
  LayerNormShape ShapeFor(int batch) const;
  // The mean and 1 / deviation of each row, which forward keeps.
  Span StatisticsOf(const LayerPass& pass) const;

  const int rows_;
  const WeightAndBias parameters_;
};

}  // namespace psring
