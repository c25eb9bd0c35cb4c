#include "trainer/layers/layers.h"

namespace psring {
namespace {

size_t MaximaOf(const PoolShape& shape) {
  return size_t{1} * (shape.height / 2) * (shape.width / 2) * shape.channels;
}

class MaxPoolLayer : public LayerWithoutParameters {
 public:
  explicit MaxPoolLayer(const PoolShape& shape)
      : LayerWithoutParameters({.outputs = MaximaOf(shape), .kept_bytes = MaximaOf(shape)}), shape_(shape) {}

  absl::Status Forward(const LayerPass& pass) const override {
    pass.ops.families().pooling->MaxForward(ForBatch(shape_, pass.batch), pass.x[0], pass.y,
                                            reinterpret_cast<uint8_t*>(pass.kept), pass.stream);
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerPass& pass) const override {
    if (pass.dx[0].data == nullptr) return absl::OkStatus();
    pass.ops.families().pooling->MaxBackward(ForBatch(shape_, pass.batch), pass.dy,
                                             reinterpret_cast<const uint8_t*>(pass.kept), pass.dx[0],
                                             pass.stream);
    return absl::OkStatus();
  }

 private:
  const PoolShape shape_;
};

class AveragePoolLayer : public LayerWithoutParameters {
 public:
  explicit AveragePoolLayer(const PoolShape& shape)
      : LayerWithoutParameters({.outputs = static_cast<size_t>(shape.channels)}), shape_(shape) {}

  absl::Status Forward(const LayerPass& pass) const override {
    pass.ops.families().pooling->AverageForward(ForBatch(shape_, pass.batch), pass.x[0], pass.y, pass.stream);
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerPass& pass) const override {
    if (pass.dx[0].data == nullptr) return absl::OkStatus();
    pass.ops.families().pooling->AverageBackward(ForBatch(shape_, pass.batch), pass.dy, pass.dx[0],
                                                 pass.stream);
    return absl::OkStatus();
  }

 private:
  const PoolShape shape_;
};

}  // namespace

std::unique_ptr<Layer> MakeMaxPool(const PoolShape& shape) { return std::make_unique<MaxPoolLayer>(shape); }

std::unique_ptr<Layer> MakeAveragePool(const PoolShape& shape) {
  return std::make_unique<AveragePoolLayer>(shape);
}

}  // namespace psring
