#pragma once

#include "trainer/layers/layer.h"

namespace psring {

// The largest of each 2 x 2 window, per channel.
class MaxPoolLayer : public Layer {
 public:
  // `shape.batch` is ignored.
  explicit MaxPoolLayer(const PoolShape& shape);

  absl::Status Allocate(int max_batch, DType type, Device& device) override;
  void Initialize(Random&, std::vector<float>&) const override {}
  void Forward(int batch, ConstSpan weights, ConstSpan x, Ops& ops, Stream& stream) override;
  void Backward(int batch, ConstSpan weights, ConstSpan x, Span dx, Span gradient, Ops& ops,
                Stream& stream) override;

 private:
  const PoolShape shape_;
  Buffer argmax_;
};

}  // namespace psring
