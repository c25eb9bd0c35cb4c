#include "trainer/layers/layers.h"

namespace psring {
namespace {

class DotLayer : public LayerWithoutParameters {
 public:
  explicit DotLayer(const DotShape& shape)
      : LayerWithoutParameters(
            {.outputs = shape.outputs(), .inputs = {InputGradient::kWritten, InputGradient::kWritten}}),
        shape_(shape) {}

  absl::Status Forward(const LayerPass& pass) const override {
    pass.ops.families().dots->Forward(ForBatch(shape_, pass.batch), pass.x[0], pass.x[1], pass.y,
                                      pass.stream);
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerPass& pass) const override {
    pass.ops.families().dots->Backward(ForBatch(shape_, pass.batch), pass.x[0], pass.x[1], pass.dy,
                                       pass.dx[0], pass.dx[1], pass.stream);
    return absl::OkStatus();
  }

 private:
  const DotShape shape_;
};

}  // namespace

std::unique_ptr<Layer> MakeDots(Dots kind, int others, int width) {
  return std::make_unique<DotLayer>(DotShape{kind, 0, others, width});
}

}  // namespace psring
