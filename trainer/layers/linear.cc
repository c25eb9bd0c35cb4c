#include "trainer/layers/linear.h"

namespace psring {

LinearLayer::LinearLayer(const std::string& name, int inputs, int outputs, bool relu, ParameterLayout& layout,
                         ImageShape image)
    : LinearLayer({.batch = 1,
                   .inputs = inputs,
                   .outputs = outputs,
                   .activation = relu ? Activation::kRelu : Activation::kNone},
                  WeightAndBias(name, {outputs, inputs}, layout, image)) {}

LinearLayer::LinearLayer(const LinearShape& shape, const WeightAndBias& parameters)
    : Layer({.outputs = static_cast<size_t>(shape.outputs), .parameters = parameters.range()}),
      shape_(shape),
      parameters_(parameters) {}

LinearShape LinearLayer::ShapeFor(int batch) const {
  LinearShape shape = shape_;
  shape.batch = batch;
  return shape;
}

absl::Status LinearLayer::Forward(const LayerPass& pass) const {
  pass.ops.families().linear->Forward(ShapeFor(pass.batch), pass.x[0], Part(pass.weights, parameters_.weight),
                                      Part(pass.weights, parameters_.bias), /*residual=*/{}, pass.y,
                                      /*saved=*/{}, pass.stream);
  return absl::OkStatus();
}

absl::Status LinearLayer::BackwardInput(const LayerPass& pass) const {
  pass.ops.families().linear->BackwardInput(ShapeFor(pass.batch), Part(pass.weights, parameters_.weight),
                                            pass.y, pass.dy, pass.dx[0],
                                            Part(pass.gradient, parameters_.bias), pass.stream);
  return absl::OkStatus();
}

absl::Status LinearLayer::BackwardWeight(const LayerPass& pass) const {
  pass.ops.families().linear->BackwardWeight(ShapeFor(pass.batch), pass.x[0], pass.dy,
                                             Part(pass.gradient, parameters_.weight), pass.stream);
  return absl::OkStatus();
}

}  // namespace psring
