#include "trainer/layers/conv.h"

namespace psring {

ConvLayer::ConvLayer(const std::string& name, const ConvShape& shape, ParameterLayout& layout)
    : ConvLayer(shape, WeightAndBias(
                           name, {shape.out_channels, shape.kernel, shape.kernel, shape.in_channels}, layout,
                           {.height = shape.kernel, .width = shape.kernel, .channels = shape.in_channels})) {}

ConvLayer::ConvLayer(const ConvShape& shape, const WeightAndBias& parameters)
    : Layer({.outputs = size_t{1} * shape.out_height() * shape.out_width() * shape.out_channels,
             .parameters = parameters.range()}),
      shape_(shape),
      parameters_(parameters) {}

ConvShape ConvLayer::ShapeFor(int batch) const {
  ConvShape shape = shape_;
  shape.batch = batch;
  return shape;
}

absl::Status ConvLayer::Forward(const LayerPass& pass) const {
  pass.ops.families().convolution->Forward(ShapeFor(pass.batch), pass.x[0],
                                           Part(pass.weights, parameters_.weight),
                                           Part(pass.weights, parameters_.bias), pass.y, pass.stream);
  return absl::OkStatus();
}

absl::Status ConvLayer::BackwardInput(const LayerPass& pass) const {
  pass.ops.families().convolution->BackwardInput(ShapeFor(pass.batch), Part(pass.weights, parameters_.weight),
                                                 pass.y, pass.dy, pass.dx[0],
                                                 Part(pass.gradient, parameters_.bias), pass.stream);
  return absl::OkStatus();
}

absl::Status ConvLayer::BackwardWeight(const LayerPass& pass) const {
  pass.ops.families().convolution->BackwardWeight(ShapeFor(pass.batch), pass.x[0], pass.dy,
                                                  Part(pass.gradient, parameters_.weight), pass.stream);
  return absl::OkStatus();
}

}  // namespace psring
