#include "trainer/layers/layers.h"

namespace psring {
namespace {

class ConvLayer : public Layer {
 public:
  ConvLayer(const ConvConfig& config, const WeightAndBias& parameters)
      : Layer({.outputs = size_t{1} * config.shape.out_height() * config.shape.out_width() *
                          config.shape.out_channels,
               .parameters = parameters.range(),
               .early = parameters.bias.space,
               .inputs = {InputGradient::kAddable}}),
        config_(config),
        parameters_(parameters) {}

  void Initialize(Random& random, float* own) const override {
    if (config_.deviation == 0) return InitializeUniform(parameters_, random, own);
    InitializeNormal(parameters_.weight, config_.deviation, random, own);
  }
  absl::Status Forward(const LayerPass& pass) const override {
    const ConstSpan bias = has_bias() ? Part(pass.weights, parameters_.bias) : ConstSpan();
    pass.ops.families().convolution->Forward(ForBatch(config_.shape, pass.batch), pass.x[0],
                                             Part(pass.weights, parameters_.weight), bias, pass.y,
                                             pass.stream);
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerPass& pass) const override {
    const Span dbias = has_bias() ? Part(pass.gradient, parameters_.bias) : Span{};
    pass.ops.families().convolution->BackwardInput(ForBatch(config_.shape, pass.batch),
                                                   Part(pass.weights, parameters_.weight), pass.y, pass.dy,
                                                   pass.dx[0], pass.adds[0], dbias, pass.stream);
    return absl::OkStatus();
  }
  absl::Status BackwardWeight(const LayerPass& pass) const override {
    pass.ops.families().convolution->BackwardWeight(ForBatch(config_.shape, pass.batch), pass.x[0], pass.dy,
                                                    Part(pass.gradient, parameters_.weight), pass.stream);
    return absl::OkStatus();
  }

 private:
  bool has_bias() const { return parameters_.bias.count > 0; }

  const ConvConfig config_;
  const WeightAndBias parameters_;
};

}  // namespace

std::unique_ptr<Layer> MakeConv(const std::string& name, const ConvConfig& config, ParameterLayout& layout) {
  const int kernel = config.shape.kernel, channels = config.shape.in_channels;
  return std::make_unique<ConvLayer>(
      config, WeightAndBias::In(layout, name, {config.shape.out_channels, kernel, kernel, channels},
                                {.height = kernel, .width = kernel, .channels = channels}, config.bias));
}

}  // namespace psring
