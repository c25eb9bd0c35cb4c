#include "trainer/layers/max_pool.h"

namespace psring {

MaxPoolLayer::MaxPoolLayer(const PoolShape& shape)
    : Layer(size_t{1} * (shape.height / 2) * (shape.width / 2) * shape.channels), shape_(shape) {}

absl::Status MaxPoolLayer::Allocate(int max_batch, DType type, Device& device) {
  PSRING_RETURN_IF_ERROR(Layer::Allocate(max_batch, type, device));
  PSRING_ASSIGN_OR_RETURN(argmax_, device.Allocate(max_batch * outputs()));
  return absl::OkStatus();
}

void MaxPoolLayer::Forward(int batch, ConstSpan /*weights*/, ConstSpan x, Ops& ops, Stream& stream) {
  PoolShape shape = shape_;
  shape.batch = batch;
  ops.families().pooling->MaxForward(shape, x, output(batch), static_cast<uint8_t*>(argmax_.data()), stream);
}

void MaxPoolLayer::Backward(int batch, ConstSpan /*weights*/, ConstSpan /*x*/, Span dx, Span /*gradient*/,
                            Ops& ops, Stream& stream) {
  if (dx.data == nullptr) return;
  PoolShape shape = shape_;
  shape.batch = batch;
  ops.families().pooling->MaxBackward(shape, output_gradient(batch),
                                      static_cast<const uint8_t*>(argmax_.data()), dx, stream);
}

}  // namespace psring
