#pragma once

#include "trainer/layers/layer.h"

namespace psring {

// The mean over all positions of a picture, per channel.
class AveragePoolLayer : public Layer {
 public:
  // `shape.batch` is ignored.
  explicit AveragePoolLayer(const PoolShape& shape)
      : Layer({.outputs = static_cast<size_t>(shape.channels)}), shape_(shape) {}

  void Initialize(Random&, std::vector<float>&) const override {}
  absl::Status Forward(const LayerPass& pass) const override;
  absl::Status BackwardInput(const LayerPass& pass) const override;
  absl::Status BackwardWeight(const LayerPass&) const override { return absl::OkStatus(); }

 private:
  PoolShape ShapeFor(int batch) const;

  const PoolShape shape_;
};

}  // namespace psring
