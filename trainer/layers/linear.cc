#include "common/base/check.h"
#include "trainer/layers/layers.h"

namespace psring {
namespace {

size_t GeluInputs(const LinearConfig& config) {
  return config.activation == Activation::kGelu ? size_t{1} * config.rows * config.outputs : 0;
}

bool AddsOutputs(const LinearConfig& config) {
  return config.division == LinearDivision::kInputs && config.place.ranks > 1;
}

bool AddsInputs(const LinearConfig& config) {
  return config.division == LinearDivision::kOutputs && config.place.ranks > 1;
}

// Elements: all rows of y, or of x.
size_t GatheredBy(const LinearConfig& config) {
  if (!config.place.divides_rows) return 0;
  const int of_row = AddsOutputs(config) ? config.outputs : AddsInputs(config) ? config.inputs : 0;
  return size_t{1} * config.rows * of_row;
}

AxisTraffic SentBy(const LinearConfig& config) {
  const TensorPlace& place = config.place;
  const double y = place.SentByHalf(size_t{1} * config.rows * config.outputs),
               x = place.SentByHalf(size_t{1} * config.rows * config.inputs);
  if (AddsOutputs(config)) return place.divides_rows ? AxisTraffic{y, y} : AxisTraffic{2 * y, 0};
  if (AddsInputs(config)) return {place.divides_rows ? x : 0, 2 * x};
  return {};
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
      : Layer(
            {.outputs = size_t{1} * (AddsOutputs(config) ? config.place.OwnRows(config.rows) : config.rows) *
                        config.outputs,
             .kept_elements = GeluInputs(config),
             .parameters = parameters.range(),
             .early = parameters.bias.space,
             .inputs = WrittenAndPassed(config.residual),
             .gathered = GatheredBy(config),
             .sends = SentBy(config)}),
        config_(config),
        parameters_(parameters) {
    PSRING_CHECK(!config.residual || config.activation == Activation::kNone);
    PSRING_CHECK(!AddsOutputs(config) || config.activation == Activation::kNone);
    PSRING_CHECK(!AddsInputs(config) || !config.residual);
  }

  void Initialize(Random& random, float* own) const override {
    if (is_tied()) return;
    if (config_.deviation == 0) return InitializeUniform(parameters_, random, own);
    InitializeNormal(parameters_.weight, config_.deviation, random, own);
  }
  absl::Status Forward(const LayerPass& pass) const override {
    const bool is_counted = !AddsOutputs(config_) || config_.place.rank == 0;  // in the sum once
    const ConstSpan bias = is_tied() || !is_counted ? ConstSpan() : Part(pass.weights, parameters_.bias);
    const ConstSpan residual = config_.residual && is_counted && !sums_own_rows() ? pass.x[1] : ConstSpan();
    if (gathers()) PSRING_RETURN_IF_ERROR(axis().Gather(pass.x[0], All(pass.x[0]), pass.stream));
    const Span y = sums_own_rows() ? All(pass.y) : pass.y;
    pass.ops.families().linear->Forward(ShapeFor(pass.batch), gathers() ? All(pass.x[0]) : pass.x[0],
                                        Part(pass.weights, parameters_.weight), bias, residual, y,
                                        KeptOf(pass), pass.stream);
    if (sums_own_rows()) return SumOwnRows(pass);
    return AddsOutputs(config_) ? axis().Sum(pass.y, pass.stream) : absl::OkStatus();
  }
  // The ranks gather x while this computes, and add up dx while BackwardWeight does.
  absl::Status BackwardInput(const LayerPass& pass) const override {
    const Span dbias = is_tied() ? Span{} : Part(pass.gradient, parameters_.bias);
    const ConstSpan saved = config_.activation == Activation::kRelu ? pass.y : KeptOf(pass);
    const bool needs_dx = pass.dx[0].data != nullptr;
    Span dy = pass.dy, dx = pass.dx[0];
    if (sums_own_rows()) {
      dy = All(pass.dy);
      PSRING_RETURN_IF_ERROR(axis().Gather(pass.dy, dy, pass.stream));
    } else if (gathers()) {
      PSRING_RETURN_IF_ERROR(axis().BeginGather(pass.x[0], All(pass.x[0]), pass.stream));
      if (needs_dx) dx = All(pass.dx[0], /*piece=*/1);
    }
    pass.ops.families().linear->BackwardInput(ShapeFor(pass.batch), Part(pass.weights, parameters_.weight),
                                              saved, dy, dx, dbias, pass.stream);
    if (gathers()) axis().Finish(pass.stream);
    if (!AddsInputs(config_) || !needs_dx) return absl::OkStatus();
    return gathers() ? axis().BeginSumOwn(dx, pass.dx[0], pass.stream)
                     : axis().BeginSum(pass.dx[0], pass.stream);
  }
  absl::Status BackwardWeight(const LayerPass& pass) const override {
    pass.ops.families().linear->BackwardWeight(ShapeFor(pass.batch), gathers() ? All(pass.x[0]) : pass.x[0],
                                               sums_own_rows() ? ConstSpan(All(pass.dy)) : ConstSpan(pass.dy),
                                               Part(pass.gradient, parameters_.weight), pass.stream);
    if (AddsInputs(config_) && pass.dx[0].data != nullptr) axis().Finish(pass.stream);
    return absl::OkStatus();
  }

 private:
  // y += residual, as dropout that drops nothing adds it.
  absl::Status SumOwnRows(const LayerPass& pass) const {
    if (!config_.residual) return axis().SumOwn(All(pass.y), pass.y, pass.stream);
    const Span sums = axis().Piece(1, pass.y.count, pass.y.type);
    PSRING_RETURN_IF_ERROR(axis().SumOwn(All(pass.y), sums, pass.stream));
    pass.ops.families().dropout->Apply({.batch = 1, .elements = sums.count, .probability = 0, .layer = 0},
                                       nullptr, sums, pass.x[1], pass.y, pass.stream);
    return absl::OkStatus();
  }

  TensorAxis& axis() const { return *config_.place.axis; }
  // What the ranks do if they divide rows.
  bool gathers() const { return config_.place.divides_rows && AddsInputs(config_); }
  bool sums_own_rows() const { return config_.place.divides_rows && AddsOutputs(config_); }
  // The memory of all ranks' rows of a value.
  Span All(const ConstSpan& own, size_t piece = 0) const {
    return axis().Piece(piece, own.count * static_cast<size_t>(config_.place.ranks), own.type);
  }
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
