#include "trainer/layers/max_pool.h"

namespace psring {
namespace {

size_t Pooled(const PoolShape& shape) {
  return size_t{1} * (shape.height / 2) * (shape.width / 2) * shape.channels;
}

}  // namespace

MaxPoolLayer::MaxPoolLayer(const PoolShape& shape)
    : Layer({.outputs = Pooled(shape), .kept_bytes = Pooled(shape)}), shape_(shape) {}

PoolShape MaxPoolLayer::ShapeFor(int batch) const {
  PoolShape shape = shape_;
  shape.batch = batch;
  return shape;
}

absl::Status MaxPoolLayer::Forward(const LayerPass& pass) const {
  pass.ops.families().pooling->MaxForward(ShapeFor(pass.batch), pass.x[0], pass.y,
                                          reinterpret_cast<uint8_t*>(pass.kept), pass.stream);
  return absl::OkStatus();
}

absl::Status MaxPoolLayer::BackwardInput(const LayerPass& pass) const {
  if (pass.dx[0].data == nullptr) return absl::OkStatus();
  pass.ops.families().pooling->MaxBackward(
      ShapeFor(pass.batch), pass.dy, reinterpret_cast<const uint8_t*>(pass.kept), pass.dx[0], pass.stream);
  return absl::OkStatus();
}

}  // namespace psring
