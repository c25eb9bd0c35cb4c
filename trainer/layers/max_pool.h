#pragma once

#include "trainer/layers/layer.h"

namespace psring {

// The largest of each 2 x 2 window, per channel. Keeps the index of each maximum.
class MaxPoolLayer : public Layer {
 public:
  // `shape.batch` is ignored.
  explicit MaxPoolLayer(const PoolShape& shape);

  void Initialize(Random&, std::vector<float>&) const override {}
  absl::Status Forward(const LayerPass& pass) const override;
  absl::Status BackwardInput(const LayerPass& pass) const override;
  absl::Status BackwardWeight(const LayerPass&) const override { return absl::OkStatus(); }

 private:
  PoolShape ShapeFor(int batch) const;

  const PoolShape shape_;
};

}  // namespace psring
