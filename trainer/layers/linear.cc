#include "trainer/layers/linear.h"

namespace psring {

LinearLayer::LinearLayer(const std::string& name, int inputs, int outputs, bool relu, ParameterLayout& layout,
                         ImageShape image)
    : Layer(outputs),
      shape_{.batch = 1,
             .inputs = inputs,
             .outputs = outputs,
             .activation = relu ? Activation::kRelu : Activation::kNone},
      parameters_(name, {outputs, inputs}, layout, image) {}

void LinearLayer::Initialize(Random& random, std::vector<float>& weights) const {
  parameters_.Initialize(random, weights);
}

void LinearLayer::Forward(int batch, ConstSpan weights, ConstSpan x, Ops& ops, Stream& stream) {
  LinearShape shape = shape_;
  shape.batch = batch;
  ops.families().linear->Forward(shape, x, Part(weights, parameters_.weight), Part(weights, parameters_.bias),
                                 /*residual=*/{}, output(batch), /*saved=*/{}, stream);
}

void LinearLayer::Backward(int batch, ConstSpan weights, ConstSpan x, Span dx, Span gradient, Ops& ops,
                           Stream& stream) {
  LinearShape shape = shape_;
  shape.batch = batch;
  LinearOps& linear = *ops.families().linear;
  const Span dy = output_gradient(batch);
  linear.BackwardInput(shape, Part(weights, parameters_.weight), output(batch), dy, dx,
                       Part(gradient, parameters_.bias), stream);
  linear.BackwardWeight(shape, x, dy, Part(gradient, parameters_.weight), stream);
}

}  // namespace psring
