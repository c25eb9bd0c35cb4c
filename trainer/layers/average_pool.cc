#include "trainer/layers/average_pool.h"

namespace psring {

PoolShape AveragePoolLayer::ShapeFor(int batch) const {
  PoolShape shape = shape_;
  shape.batch = batch;
  return shape;
}

absl::Status AveragePoolLayer::Forward(const LayerPass& pass) const {
  pass.ops.families().pooling->AverageForward(ShapeFor(pass.batch), pass.x[0], pass.y, pass.stream);
  return absl::OkStatus();
}

absl::Status AveragePoolLayer::BackwardInput(const LayerPass& pass) const {
  if (pass.dx[0].data == nullptr) return absl::OkStatus();
  pass.ops.families().pooling->AverageBackward(ShapeFor(pass.batch), pass.dy, pass.dx[0], pass.stream);
  return absl::OkStatus();
}

}  // namespace psring
