#include "common/base/check.h"
#include "trainer/layers/layers.h"

namespace psring {
namespace {

size_t GeluInputBytes(const LinearConfig& config) {
  return config.activation == Activation::kGelu ? sizeof(float) * config.rows * config.outputs : 0;
}

class LinearLayer : public Layer {
 public:
  LinearLayer(const LinearConfig& config, const WeightAndBias& parameters)
      : Layer({.outputs = size_t{1} * config.rows * config.outputs,
               .kept_bytes = GeluInputBytes(config),
               .parameters = parameters.range(),
               .early = parameters.bias.space,
               .inputs = WrittenAndPassed(config.residual)}),
        config_(config),
        parameters_(parameters) {
    PSRING_CHECK(!config.residual || config.activation == Activation::kNone);
  }

  void Initialize(Random& random, float* own) const override {
    if (is_tied()) return;
    if (config_.deviation == 0) return InitializeUniform(parameters_, random, own);
    InitializeNormal(parameters_.weight, config_.deviation, random, own);
  }
  absl::Status Forward(const LayerPass& pass) const override {
    const ConstSpan bias = is_tied() ? ConstSpan() : Part(pass.weights, parameters_.bias);
    const ConstSpan residual = config_.residual ? pass.x[1] : ConstSpan();
    pass.ops.families().linear->Forward(ShapeFor(pass.batch), pass.x[0],
                                        Part(pass.weights, parameters_.weight), bias, residual, pass.y,
                                        KeptOf(pass), pass.stream);
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerPass& pass) const override {
    const Span dbias = is_tied() ? Span{} : Part(pass.gradient, parameters_.bias);
    const ConstSpan saved = config_.activation == Activation::kRelu ? pass.y : KeptOf(pass);
    pass.ops.families().linear->BackwardInput(ShapeFor(pass.batch), Part(pass.weights, parameters_.weight),
                                              saved, pass.dy, pass.dx[0], dbias, pass.stream);
    return absl::OkStatus();
  }
  absl::Status BackwardWeight(const LayerPass& pass) const override {
    pass.ops.families().linear->BackwardWeight(ShapeFor(pass.batch), pass.x[0], pass.dy,
                                               Part(pass.gradient, parameters_.weight), pass.stream);
    return absl::OkStatus();
  }

 private:
  bool is_tied() const { return parameters_.bias.count == 0; }
  LinearShape ShapeFor(int batch) const {
    return {.batch = batch * config_.rows,
            .inputs = config_.inputs,
            .outputs = config_.outputs,
            .activation = config_.activation};
  }
  // The input of GELU, which forward keeps.
  Span KeptOf(const LayerPass& pass) const {
    return config_.activation == Activation::kGelu ? Span{pass.kept, pass.y.count, pass.y.type} : Span{};
  }

  const LinearConfig config_;
  const WeightAndBias parameters_;
};

}  // namespace

std::unique_ptr<Layer> MakeLinear(const std::string& name, const LinearConfig& config,
                                  ParameterLayout& layout) {
  return std::make_unique<LinearLayer>(
      config, WeightAndBias::In(layout, name, {config.outputs, config.inputs}, config.image));
}

std::unique_ptr<Layer> MakeTiedLinear(const LinearConfig& config, const Tensor& weight) {
  return std::make_unique<LinearLayer>(config, WeightAndBias{.weight = weight, .bias = {}});
}

}  // namespace psring
