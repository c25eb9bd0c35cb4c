#include "trainer/layers/conv.h"

namespace psring {

ConvLayer::ConvLayer(const std::string& name, const ConvConfig& config, ParameterLayout& layout)
    : ConvLayer(config, WeightAndBias::In(layout, name,
                                          {config.shape.out_channels, config.shape.kernel,
                                           config.shape.kernel, config.shape.in_channels},
                                          {.height = config.shape.kernel,
                                           .width = config.shape.kernel,
                                           .channels = config.shape.in_channels},
                                          config.bias)) {}

ConvLayer::ConvLayer(const ConvConfig& config, const WeightAndBias& parameters)
    : Layer({.outputs =
                 size_t{1} * config.shape.out_height() * config.shape.out_width() * config.shape.out_channels,
             .parameters = parameters.range(),
             .inputs = {InputGradient::kAddable}}),
      config_(config),
      parameters_(parameters) {}

ConvShape ConvLayer::ShapeFor(int batch) const {
  ConvShape shape = config_.shape;
  shape.batch = batch;
  return shape;
}

void ConvLayer::Initialize(Random& random, std::vector<float>& weights) const {
  if (config_.deviation == 0) return InitializeUniform(parameters_, random, weights);
  InitializeNormal(parameters_.weight, config_.deviation, random, weights);
}

absl::Status ConvLayer::Forward(const LayerPass& pass) const {
  const ConstSpan bias = has_bias() ? Part(pass.weights, parameters_.bias) : ConstSpan();
  pass.ops.families().convolution->Forward(ShapeFor(pass.batch), pass.x[0],
                                           Part(pass.weights, parameters_.weight), bias, pass.y, pass.stream);
  return absl::OkStatus();
}

absl::Status ConvLayer::BackwardInput(const LayerPass& pass) const {
  const Span dbias = has_bias() ? Part(pass.gradient, parameters_.bias) : Span{};
  pass.ops.families().convolution->BackwardInput(ShapeFor(pass.batch), Part(pass.weights, parameters_.weight),
                                                 pass.y, pass.dy, pass.dx[0], pass.adds[0], dbias,
                                                 pass.stream);
  return absl::OkStatus();
}

absl::Status ConvLayer::BackwardWeight(const LayerPass& pass) const {
  pass.ops.families().convolution->BackwardWeight(ShapeFor(pass.batch), pass.x[0], pass.dy,
                                                  Part(pass.gradient, parameters_.weight), pass.stream);
  return absl::OkStatus();
}

}  // namespace psring
