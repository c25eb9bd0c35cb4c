#include <algorithm>

#include "common/base/check.h"
#include "trainer/layers/layers.h"
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

class BatchNormLayer : public Layer {
 public:
  BatchNormLayer(const BatchNormConfig& config, const WeightAndBias& parameters, const ReadyRange& running)
      : Layer({.outputs = size_t{1} * config.positions * config.channels,
               .kept_once = 4 * sizeof(float) * static_cast<size_t>(config.channels),
               .parameters = parameters.range(),
               .early = parameters.range().count,
               .buffers = running,
               .inputs = WrittenAndPassed(config.residual)}),
        config_(config),
        parameters_(parameters) {}

  void Initialize(Random&, float* own) const override { std::fill_n(own, parameters_.weight.count, 1.0f); }

  absl::Status Forward(const LayerPass& pass) const override {
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
    ops.Forward(shape, pass.x[0], Part(pass.weights, parameters_.weight),
                Part(pass.weights, parameters_.bias), config_.residual ? pass.x[1] : ConstSpan(), statistics,
                pass.y, pass.stream);
    return absl::OkStatus();
  }

  // With shared statistics dx depends on the sums over all ranks' rows. They have as many rows as this one,
  // so the means over the ranks stand for this rank's sums.
  absl::Status BackwardInput(const LayerPass& pass) const override {
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
  absl::Status BackwardWeight(const LayerPass&) const override { return absl::OkStatus(); }

 private:
  BatchNormShape ShapeFor(int batch) const {
    return {.rows = batch * config_.positions, .channels = config_.channels, .relu = config_.relu};
  }
  // Kept [2][channels]: means and variances.
  Span StatisticsOf(const LayerPass& pass) const {
    return {pass.kept, size_t{2} * config_.channels, DType::kFloat32};
  }
  // Kept [2][channels] in backward: the gradients of weight and bias, as means over the ranks.
  Span SumsOf(const LayerPass& pass) const {
    const Span statistics = StatisticsOf(pass);
    return {pass.kept + statistics.bytes(), statistics.count, DType::kFloat32};
  }

  const BatchNormConfig config_;
  const WeightAndBias parameters_;
};

}  // namespace

std::unique_ptr<Layer> MakeBatchNorm(const std::string& name, const BatchNormConfig& config,
                                     ParameterLayout& layout) {
  const WeightAndBias parameters = WeightAndBias::In(layout, name, {config.channels});
  return std::make_unique<BatchNormLayer>(config, parameters, AddRunning(layout, name, config.channels));
}

}  // namespace psring
