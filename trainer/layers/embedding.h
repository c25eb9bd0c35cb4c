#pragma once

#include <memory>
#include <string>

#include "trainer/layers/layer.h"

namespace psring {

struct EmbeddingConfig {
  std::string table, positions;  // names of the tensors
  int rows;                      // of the table; tokens are below it
  int context;                   // tokens of a sample
  int width;
  float deviation;  // of the initial weights, which are normal
};

// For each token of a sample, the sum of its row of a table and of its position's.
class EmbeddingLayer : public Layer {
 public:
  static std::unique_ptr<EmbeddingLayer> In(ParameterLayout& layout, const EmbeddingConfig& config);

  // For an output layer that shares it.
  const Tensor& table() const { return table_; }

  void Initialize(Random& random, std::vector<float>& weights) const override;
  absl::Status Forward(const LayerPass& pass) const override;
  absl::Status BackwardInput(const LayerPass&) const override { return absl::OkStatus(); }
  absl::Status BackwardWeight(const LayerPass& pass) const override;

 private:
  EmbeddingLayer(const Tensor& table, const Tensor& positions, float deviation);

  const Tensor table_, positions_;
  const float deviation_;
};

}  // namespace psring
