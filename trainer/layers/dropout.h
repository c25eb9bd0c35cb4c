#pragma once

#include "trainer/layers/layer.h"

namespace psring {

struct DropoutConfig {
  size_t elements;        // of a sample
  double probability;     // in [0, 1)
  uint32_t number;        // distinguishes the dropout layers of a model
  bool residual = false;  // the layer has a second input, which it adds to y
};

// In training, DropoutOps by LayerPass::sample_seeds. No mask is stored: backward, and a forward pass that is
// computed again, generate the same one.
class DropoutLayer : public Layer {
 public:
  explicit DropoutLayer(const DropoutConfig& config);

  void Initialize(Random&, std::vector<float>&) const override {}
  absl::Status Forward(const LayerPass& pass) const override;
  absl::Status BackwardInput(const LayerPass& pass) const override;
  absl::Status BackwardWeight(const LayerPass&) const override { return absl::OkStatus(); }

 private:
  DropoutShape ShapeFor(int batch) const;

  const DropoutConfig config_;
};

}  // namespace psring
