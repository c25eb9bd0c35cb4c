#pragma once

#include <string>

#include "trainer/layers/layer.h"

namespace psring {

struct BatchNormConfig {
  int positions;  // of a sample, each with `channels` values
  int channels;
  bool relu = false;
  bool residual = false;  // the layer has a second input, which it adds before ReLU
};

// Normalizes each channel (Ioffe & Szegedy 2015), with a weight, initially 1, and a bias, initially 0.
// Training uses the batch's means and variances and keeps running ones, which evaluation uses; PyTorch's
// momentum, 0.1, and epsilon, 1e-5. The gradient of the residual input is that of y, masked by ReLU.
class BatchNormLayer : public Layer {
 public:
  BatchNormLayer(const std::string& name, const BatchNormConfig& config, ParameterLayout& layout);

  void Initialize(Random&, std::vector<float>& weights) const override {
    Fill(parameters_.weight, 1, weights);
  }
  absl::Status Forward(const LayerPass& pass) const override;
  // In training mode.
  absl::Status BackwardInput(const LayerPass& pass) const override;
  absl::Status BackwardWeight(const LayerPass&) const override { return absl::OkStatus(); }

 private:
  BatchNormLayer(const BatchNormConfig& config, const WeightAndBias& parameters, const ReadyRange& running);
  BatchNormShape ShapeFor(int batch) const;
  // Kept [2][channels]: means and variances.
  Span StatisticsOf(const LayerPass& pass) const;
  // Kept [2][channels] in backward: the gradients of weight and bias, as means over the ranks.
  Span SumsOf(const LayerPass& pass) const;

  const BatchNormConfig config_;
  const WeightAndBias parameters_;
};

}  // namespace psring
