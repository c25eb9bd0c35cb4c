#include "trainer/layers/linear.h"

#include "common/base/check.h"

namespace psring {
namespace {

LayerTraits TraitsOf(const LinearConfig& config, const WeightAndBias& parameters) {
  const size_t outputs = size_t{1} * config.rows * config.outputs;
  LayerTraits traits{.outputs = outputs,
                     .kept_bytes = config.activation == Activation::kGelu ? outputs * sizeof(float) : 0,
                     .parameters = parameters.range()};
  if (config.residual) traits.inputs.push_back(InputGradient::kPassed);
  return traits;
}

}  // namespace

LinearLayer::LinearLayer(const LinearConfig& config, const WeightAndBias& parameters)
    : Layer(TraitsOf(config, parameters)), config_(config), parameters_(parameters) {
  PSRING_CHECK(!config.residual || config.activation == Activation::kNone);
}

LinearShape LinearLayer::ShapeFor(int batch) const {
  return {.batch = batch * config_.rows,
          .inputs = config_.inputs,
          .outputs = config_.outputs,
          .activation = config_.activation};
}

Span LinearLayer::KeptOf(const LayerPass& pass) const {
  return config_.activation == Activation::kGelu ? Span{pass.kept, pass.y.count, pass.y.type} : Span{};
}

void LinearLayer::Initialize(Random& random, std::vector<float>& weights) const {
  if (is_tied()) return;
  if (config_.deviation == 0) return InitializeUniform(parameters_, random, weights);
  InitializeNormal(parameters_.weight, config_.deviation, random, weights);
}

absl::Status LinearLayer::Forward(const LayerPass& pass) const {
  const ConstSpan bias = is_tied() ? ConstSpan() : Part(pass.weights, parameters_.bias);
  const ConstSpan residual = config_.residual ? pass.x[1] : ConstSpan();
  pass.ops.families().linear->Forward(ShapeFor(pass.batch), pass.x[0], Part(pass.weights, parameters_.weight),
                                      bias, residual, pass.y, KeptOf(pass), pass.stream);
  return absl::OkStatus();
}

absl::Status LinearLayer::BackwardInput(const LayerPass& pass) const {
  const Span dbias = is_tied() ? Span{} : Part(pass.gradient, parameters_.bias);
  const ConstSpan saved = config_.activation == Activation::kRelu ? pass.y : KeptOf(pass);
  pass.ops.families().linear->BackwardInput(ShapeFor(pass.batch), Part(pass.weights, parameters_.weight),
                                            saved, pass.dy, pass.dx[0], dbias, pass.stream);
  return absl::OkStatus();
}

absl::Status LinearLayer::BackwardWeight(const LayerPass& pass) const {
  pass.ops.families().linear->BackwardWeight(ShapeFor(pass.batch), pass.x[0], pass.dy,
                                             Part(pass.gradient, parameters_.weight), pass.stream);
  return absl::OkStatus();
}

}  // namespace psring
