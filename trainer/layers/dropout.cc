#include "trainer/layers/layers.h"

namespace psring {
namespace {

class DropoutLayer : public LayerWithoutParameters {
 public:
  explicit DropoutLayer(const DropoutConfig& config)
      : LayerWithoutParameters({.outputs = config.elements, .inputs = WrittenAndPassed(config.residual)}),
        config_(config) {}

  absl::Status Forward(const LayerPass& pass) const override {
    const bool evaluates = pass.mode == PassMode::kEvaluation;
    pass.ops.families().dropout->Apply(ShapeFor(pass.batch), evaluates ? nullptr : pass.sample_seeds,
                                       pass.x[0], config_.residual ? pass.x[1] : ConstSpan(), pass.y,
                                       pass.stream);
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerPass& pass) const override {
    pass.ops.families().dropout->Apply(ShapeFor(pass.batch), pass.sample_seeds, pass.dy, {}, pass.dx[0],
                                       pass.stream);
    return absl::OkStatus();
  }

 private:
  DropoutShape ShapeFor(int batch) const {
    return {.batch = batch,
            .elements = config_.elements,
            .probability = config_.probability,
            .layer = config_.number};
  }

  const DropoutConfig config_;
};

}  // namespace

std::unique_ptr<Layer> MakeDropout(const DropoutConfig& config) {
  return std::make_unique<DropoutLayer>(config);
}

}  // namespace psring
