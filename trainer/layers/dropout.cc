#include "trainer/layers/dropout.h"

namespace psring {
namespace {

LayerTraits DropoutTraits(const DropoutConfig& config) {
  LayerTraits traits{.outputs = config.elements};
  if (config.residual) traits.inputs.push_back(InputGradient::kPassed);
  return traits;
}

}  // namespace

DropoutLayer::DropoutLayer(const DropoutConfig& config) : Layer(DropoutTraits(config)), config_(config) {}

DropoutShape DropoutLayer::ShapeFor(int batch) const {
  return {.batch = batch,
          .elements = config_.elements,
          .probability = config_.probability,
          .layer = config_.number};
}

absl::Status DropoutLayer::Forward(const LayerPass& pass) const {
  const bool evaluates = pass.mode == PassMode::kEvaluation;
  pass.ops.families().dropout->Apply(ShapeFor(pass.batch), evaluates ? nullptr : pass.sample_seeds, pass.x[0],
                                     config_.residual ? pass.x[1] : ConstSpan(), pass.y, pass.stream);
  return absl::OkStatus();
}

absl::Status DropoutLayer::BackwardInput(const LayerPass& pass) const {
  pass.ops.families().dropout->Apply(ShapeFor(pass.batch), pass.sample_seeds, pass.dy, {}, pass.dx[0],
                                     pass.stream);
  return absl::OkStatus();
}

}  // namespace psring
