#pragma once

#include "trainer/layers/layer.h"

namespace psring {

// Causal multi-head self-attention. x: for each token its queries, keys and values [3][heads][head_size];
// y: [heads][head_size]. Keeps only the logarithm of each row's sum of exponentials.
class AttentionLayer : public Layer {
 public:
  AttentionLayer(int context, int heads, int head_size);

  void Initialize(Random&, std::vector<float>&) const override {}
  absl::Status Forward(const LayerPass& pass) const override;
  absl::Status BackwardInput(const LayerPass& pass) const override;
  absl::Status BackwardWeight(const LayerPass&) const override { return absl::OkStatus(); }

 private:
  AttentionShape ShapeFor(int batch) const;
  Span LogSumsOf(const LayerPass& pass) const;

  const int context_, heads_, head_size_;
};

}  // namespace psring
