#include "trainer/layers/conv.h"

namespace psring {

ConvLayer::ConvLayer(const std::string& name, const ConvShape& shape, ParameterLayout& layout)
    : Layer(size_t{1} * shape.out_height() * shape.out_width() * shape.out_channels),
      shape_(shape),
      parameters_(name, {shape.out_channels, shape.kernel, shape.kernel, shape.in_channels}, layout,
                  {.height = shape.kernel, .width = shape.kernel, .channels = shape.in_channels}) {}

void ConvLayer::Initialize(Random& random, std::vector<float>& weights) const {
  parameters_.Initialize(random, weights);
}

void ConvLayer::Forward(int batch, ConstSpan weights, ConstSpan x, Ops& ops, Stream& stream) {
  ConvShape shape = shape_;
  shape.batch = batch;
  ops.families().convolution->Forward(shape, x, Part(weights, parameters_.weight),
                                      Part(weights, parameters_.bias), output(batch), stream);
}

void ConvLayer::Backward(int batch, ConstSpan weights, ConstSpan x, Span dx, Span gradient, Ops& ops,
                         Stream& stream) {
  ConvShape shape = shape_;
  shape.batch = batch;
  ConvolutionOps& convolution = *ops.families().convolution;
  const Span dy = output_gradient(batch);
  convolution.BackwardInput(shape, Part(weights, parameters_.weight), output(batch), dy, dx,
                            Part(gradient, parameters_.bias), stream);
  convolution.BackwardWeight(shape, x, dy, Part(gradient, parameters_.weight), stream);
}

}  // namespace psring
