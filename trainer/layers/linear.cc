#include "common/base/check.h"
#include "trainer/layers/layers.h"

namespace psring {
namespace {

size_t GeluInputBytes(const LinearConfig& config) {
  return config.activation == Activation::kGelu ? sizeof(float) * config.rows * config.outputs : 0;
}

// With the numbers of inputs and outputs that this rank has.
LinearConfig OnRank(LinearConfig config) {
  if (config.division == LinearDivision::kInputs) config.inputs = config.place.ShareOf(config.inputs).count;
  if (config.division == LinearDivision::kOutputs) {
    config.outputs = config.groups * config.place.ShareOf(config.outputs / config.groups).count;
  }
  return config;
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
    PSRING_CHECK(!adds_outputs() || config.activation == Activation::kNone);
    PSRING_CHECK(!adds_inputs() || !config.residual);
  }

  void Initialize(Random& random, float* own) const override {
    if (is_tied()) return;
    if (config_.deviation == 0) return InitializeUniform(parameters_, random, own);
    InitializeNormal(parameters_.weight, config_.deviation, random, own);
  }
  absl::Status Forward(const LayerPass& pass) const override {
    const bool is_counted = !adds_outputs() || config_.place.rank == 0;  // in the sum once
    const ConstSpan bias = is_tied() || !is_counted ? ConstSpan() : Part(pass.weights, parameters_.bias);
    const ConstSpan residual = config_.residual && is_counted ? pass.x[1] : ConstSpan();
    pass.ops.families().linear->Forward(ShapeFor(pass.batch), pass.x[0],
                                        Part(pass.weights, parameters_.weight), bias, residual, pass.y,
                                        KeptOf(pass), pass.stream);
    return adds_outputs() ? config_.place.axis->Sum(pass.y, pass.stream) : absl::OkStatus();
  }
  // The ranks add up dx while BackwardWeight computes.
  absl::Status BackwardInput(const LayerPass& pass) const override {
    const Span dbias = is_tied() ? Span{} : Part(pass.gradient, parameters_.bias);
    const ConstSpan saved = config_.activation == Activation::kRelu ? pass.y : KeptOf(pass);
    pass.ops.families().linear->BackwardInput(ShapeFor(pass.batch), Part(pass.weights, parameters_.weight),
                                              saved, pass.dy, pass.dx[0], dbias, pass.stream);
    if (!adds_inputs() || pass.dx[0].data == nullptr) return absl::OkStatus();
    return config_.place.axis->BeginSum(pass.dx[0], pass.stream);
  }
  absl::Status BackwardWeight(const LayerPass& pass) const override {
    pass.ops.families().linear->BackwardWeight(ShapeFor(pass.batch), pass.x[0], pass.dy,
                                               Part(pass.gradient, parameters_.weight), pass.stream);
    if (adds_inputs() && pass.dx[0].data != nullptr) config_.place.axis->FinishSum(pass.stream);
    return absl::OkStatus();
  }

 private:
  bool adds_outputs() const { return config_.division == LinearDivision::kInputs && config_.place.ranks > 1; }
  bool adds_inputs() const { return config_.division == LinearDivision::kOutputs && config_.place.ranks > 1; }
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
  const LinearConfig own = OnRank(config);
  TensorPart weight, bias;
  if (config.place.ranks > 1 && config.division == LinearDivision::kInputs) {
    weight = config.place.PartOf(config.outputs, config.inputs);
  } else if (config.place.ranks > 1 && config.division == LinearDivision::kOutputs) {
    weight = bias = config.place.PartOf(config.groups, config.outputs / config.groups);
  }
  PSRING_CHECK(weight.whole == 0 || config.deviation > 0);
  return std::make_unique<LinearLayer>(
      own, WeightAndBias::In(layout, name, {own.outputs, own.inputs}, config.image, true, weight, bias));
}

std::unique_ptr<Layer> MakeTiedLinear(const LinearConfig& config, const Tensor& weight) {
  return std::make_unique<LinearLayer>(OnRank(config), WeightAndBias{.weight = weight, .bias = {}});
}

}  // namespace psring
