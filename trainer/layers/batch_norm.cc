#include "trainer/layers/batch_norm.h"

#include "common/base/check.h"
#include "trainer/layers/shared_statistics.h"

namespace psring {
namespace {

constexpr float kMomentum = .1f;

// The means, then the variances.
ReadyRange AddRunning(ParameterLayout& layout, const std::string& name, int channels) {
  const int mean = layout.AddBuffer(name + ".running_mean", {channels}, 0);
  layout.AddBuffer(name + ".running_var", {channels}, 1);
  return {layout.buffers()[static_cast<size_t>(mean)].first, size_t{2} * channels};
}

LayerTraits BatchNormTraits(const BatchNormConfig& config, const WeightAndBias& parameters,
                            const ReadyRange& running) {
  LayerTraits traits{.outputs = size_t{1} * config.positions * config.channels,
                     .kept_once = 4 * sizeof(float) * static_cast<size_t>(config.channels),
                     .parameters = parameters.range(),
                     .buffers = running};
  if (config.residual) traits.inputs.push_back(InputGradient::kPassed);
  return traits;
}

}  // namespace

BatchNormLayer::BatchNormLayer(const std::string& name, const BatchNormConfig& config,
                               ParameterLayout& layout)
    : BatchNormLayer(config, WeightAndBias::In(layout, name, {config.channels}),
                     AddRunning(layout, name, config.channels)) {}

BatchNormLayer::BatchNormLayer(const BatchNormConfig& config, const WeightAndBias& parameters,
                               const ReadyRange& running)
    : Layer(BatchNormTraits(config, parameters, running)), config_(config), parameters_(parameters) {}

BatchNormShape BatchNormLayer::ShapeFor(int batch) const {
  return {.rows = batch * config_.positions, .channels = config_.channels, .relu = config_.relu};
}

Span BatchNormLayer::StatisticsOf(const LayerPass& pass) const {
  return {pass.kept, size_t{2} * config_.channels, DType::kFloat32};
}

Span BatchNormLayer::SumsOf(const LayerPass& pass) const {
  const Span statistics = StatisticsOf(pass);
  return {pass.kept + statistics.bytes(), statistics.count, DType::kFloat32};
}

absl::Status BatchNormLayer::Forward(const LayerPass& pass) const {
  BatchNormOps& ops = *pass.ops.families().batch_norm;
  const BatchNormShape shape = ShapeFor(pass.batch);
  const bool evaluates = pass.mode == PassMode::kEvaluation;
  PSRING_CHECK(!evaluates || pass.buffers.data != nullptr);
  const Span statistics = evaluates ? pass.buffers : StatisticsOf(pass);
  if (pass.mode == PassMode::kTraining) {
    ops.Statistics(shape, pass.x[0], statistics, pass.stream);
    BatchNormShape of_all = shape;
    if (pass.statistics != nullptr) {
      PSRING_RETURN_IF_ERROR(pass.statistics->Combine(statistics, pass.stream));
      of_all.rows *= pass.statistics->ranks();
    }
    if (pass.buffers.data != nullptr) {
      ops.UpdateRunning(of_all, kMomentum, statistics, pass.buffers, pass.stream);
    }
  }
  ops.Forward(shape, pass.x[0], Part(pass.weights, parameters_.weight), Part(pass.weights, parameters_.bias),
              config_.residual ? pass.x[1] : ConstSpan(), statistics, pass.y, pass.stream);
  return absl::OkStatus();
}

// With shared statistics dx depends on the sums over all ranks' rows. They have as many rows as this one, so
// the means over the ranks stand for this rank's sums.
absl::Status BatchNormLayer::BackwardInput(const LayerPass& pass) const {
  PSRING_CHECK(pass.mode == PassMode::kTraining);
  BatchNormOps& ops = *pass.ops.families().batch_norm;
  const BatchNormShape shape = ShapeFor(pass.batch);
  const Span statistics = StatisticsOf(pass);
  Span dweight = Part(pass.gradient, parameters_.weight), dbias = Part(pass.gradient, parameters_.bias);
  ops.BackwardSums(shape, pass.x[0], statistics, pass.y, pass.dy, dweight, dbias, pass.stream);
  if (pass.statistics != nullptr) {
    const Span sums = SumsOf(pass), of_weight = sums.Slice(0, dweight.count),
               of_bias = sums.Slice(dweight.count, dbias.count);
    pass.stream.Copy(of_weight.data, dweight.data, dweight.bytes());
    pass.stream.Copy(of_bias.data, dbias.data, dbias.bytes());
    PSRING_RETURN_IF_ERROR(pass.statistics->Average(sums, pass.stream));
    dweight = of_weight;
    dbias = of_bias;
  }
  ops.BackwardInput(shape, pass.x[0], Part(pass.weights, parameters_.weight), statistics, pass.dy, dweight,
                    dbias, pass.dx[0], pass.stream);
  return absl::OkStatus();
}

}  // namespace psring
