// Batch normalization, average pooling and convolutions without bias, of every implementation that has them.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>

#include "tests/common/ops/ops_fixture.h"

namespace psring {
namespace {

class ResidualOpsTest : public OpsTest {};

INSTANTIATE_TEST_SUITE_P(All, ResidualOpsTest, testing::ValuesIn(AllImplementations()),
                         [](const auto& info) { return std::string(info.param.name); });

// Training: statistics of the batch. The distance of x from 0 is many deviations.
Results BatchNorm(Ops& ops, const BatchNormShape& s, bool has_residual, const Memory& m) {
  BatchNormOps& family = *ops.families().batch_norm;
  const size_t channels = s.channels, count = s.rows * channels;
  Floats values = Random(count, 1);
  for (float& value : values) value = 4 + std::round(value * 16) / 16;  // exact in bfloat16
  const Tensor x(m.device, m.stream, values, m.type),
      weight = m.Put(Random(channels, 2)), bias = m.Put(Random(channels, 3)),
      residual = m.PutActivations(count, 4), statistics = m.Result(2 * channels),
      running = m.Put(Random(2 * channels, 5)), y = m.ResultActivations(count),
      dy = m.PutActivations(count, 6), dweight = m.Result(channels), dbias = m.Result(channels),
      dx = m.ResultActivations(count);
  family.Statistics(s, x.span(), statistics.span(), m.stream);
  family.UpdateRunning(s, .1f, statistics.span(), running.span(), m.stream);
  family.Forward(s, x.span(), weight.span(), bias.span(), has_residual ? residual.span() : Span{},
                 statistics.span(), y.span(), m.stream);
  // Not y itself, of which a value that is nearly 0 may be rounded to either side.
  const Tensor mask = m.PutActivations(count, 7);
  family.BackwardSums(s, x.span(), statistics.span(), s.relu ? mask.span() : Span{}, dy.span(),
                      dweight.span(), dbias.span(), m.stream);
  family.BackwardInput(s, x.span(), weight.span(), statistics.span(), dy.span(), dweight.span(), dbias.span(),
                       dx.span(), m.stream);
  return {statistics.floats(), running.floats(), y.floats(), dy.floats(),
          dweight.floats(),    dbias.floats(),   dx.floats()};
}

TEST_P(ResidualOpsTest, BatchNormAgreesWithTheReference) {
  SKIP_WITHOUT(batch_norm);
  for (const int rows : {1, 2, 64, 65, 300}) {
    for (const int channels : {1, 3, 16, 67}) {
      for (const bool relu : {false, true}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << channels << (relu ? ", relu" : ""));
        const BatchNormShape shape{rows, channels, 1e-3f, relu};
        ExpectLikeTheReference([&](Ops& ops, const Memory& m) { return BatchNorm(ops, shape, relu, m); });
      }
    }
  }
}

TEST_P(ResidualOpsTest, GradientsOfOffsetsThatCancelKeepTheirDigits) {
  SKIP_WITHOUT(batch_norm);
  if (ops_->activations() != DType::kFloat32) GTEST_SKIP() << "The gradients below need float32.";
  constexpr int kRows = 1000;
  Floats values = Random(kRows, 1);
  for (int row = 0; row < kRows / 2; ++row) {
    values[row] = std::abs(values[row]) + 1;
    values[kRows / 2 + row] = -values[row] * (1 + 1e-6f);
  }
  const auto x = Put(Random(kRows, 2)), dy = Put(values), statistics = Put<float>({0, 1}),
             dweight = Put<float>({0}), dbias = Put<float>({0});
  ops_->families().batch_norm->BackwardSums({.rows = kRows, .channels = 1}, x.span(), statistics.span(), {},
                                            dy.span(), dweight.span(), dbias.span(), *stream_);
  EXPECT_NEAR(dbias.Get()[0], std::accumulate(values.begin(), values.end(), 0.0), 1e-9);
}

TEST_P(ResidualOpsTest, RunningStatisticsFollowPyTorchsRule) {
  SKIP_WITHOUT(batch_norm);
  const auto statistics = Put<float>({2, 3}), running = Put<float>({1, 1});
  ops_->families().batch_norm->UpdateRunning({.rows = 4, .channels = 1}, .1f, statistics.span(),
                                             running.span(), *stream_);
  EXPECT_NEAR(running.Get()[0], .9 + .1 * 2, 1e-6);
  EXPECT_NEAR(running.Get()[1], .9 + .1 * 3 * 4 / 3, 1e-6);
}

TEST_P(ResidualOpsTest, AveragePoolingTakesMeansOverPositions) {
  for (const PoolShape& shape :
       {PoolShape{0, 2, 2, 3}, PoolShape{1, 1, 1, 1}, PoolShape{2, 3, 5, 7}, PoolShape{3, 4, 4, 300}}) {
    const size_t pooled = size_t(shape.batch) * shape.channels, full = pooled * shape.height * shape.width;
    const Memory m = memory();
    const Tensor x = m.PutActivations(full, 1), y = m.ResultActivations(pooled),
                 dy = m.PutActivations(pooled, 2), dx = m.ResultActivations(full);
    ops_->families().pooling->AverageForward(shape, x.span(), y.span(), *stream_);
    ops_->families().pooling->AverageBackward(shape, dy.span(), dx.span(), *stream_);
    const Floats all = x.floats(), gradient = dy.floats();
    Floats means(pooled), spread(full);
    const int positions = shape.height * shape.width;
    for (size_t i = 0; i < full; ++i) {
      const size_t to = i / shape.channels / positions * shape.channels + i % shape.channels;
      means[to] += all[i] / positions;
      spread[i] = gradient[to] / positions;
    }
    const float rounding = ops_->activations() == DType::kFloat32 ? 1e-6f : 1.0f / 256;
    ExpectNear(y.floats(), means, rounding);
    ExpectNear(dx.floats(), spread, rounding);
  }
}

TEST_P(ResidualOpsTest, ConvolutionsMayHaveNoBias) {
  const ConvShape shape{3, 7, 8, 4, 6, 3, Activation::kNone, /*stride=*/2, /*padding=*/1};
  const LayerCounts sizes = CountsOf(shape);
  ExpectLikeTheReference([&](Ops& ops, const Memory& m) -> Results {
    ConvolutionOps& family = *ops.families().convolution;
    const Tensor x = m.PutActivations(sizes.x, 1), weight = m.Put(Exact(sizes.weight, 2)),
                 y = m.ResultActivations(sizes.y), dy = m.PutActivations(sizes.y, 3),
                 dx = m.ResultActivations(sizes.x), dweight = m.Result(sizes.weight);
    family.Forward(shape, x.span(), weight.span(), {}, y.span(), m.stream);
    family.BackwardInput(shape, weight.span(), {}, dy.span(), dx.span(), /*add=*/false, {}, m.stream);
    family.BackwardWeight(shape, x.span(), dy.span(), dweight.span(), m.stream);
    return {y.floats(), dy.floats(), dx.floats(), dweight.floats()};
  });
}

// Enough pictures for several groups.
TEST_P(ResidualOpsTest, ConvolutionsMayAddToTheGradientOfTheirInput) {
  SKIP_WITHOUT(batch_norm);
  for (const int stride : {1, 2}) {
    const ConvShape shape{6, 40, 40, 48, 16, 3, Activation::kNone, stride, /*padding=*/1};
    const LayerCounts sizes = CountsOf(shape);
    ExpectLikeTheReference([&](Ops& ops, const Memory& m) -> Results {
      const Tensor weight = m.Put(Exact(sizes.weight, 2)), dy = m.PutActivations(sizes.y, 3),
                   dx = m.PutActivations(sizes.x, 4);
      ops.families().convolution->BackwardInput(shape, weight.span(), {}, dy.span(), dx.span(), /*add=*/true,
                                                {}, m.stream);
      return {dx.floats()};
    });
  }
}

}  // namespace
}  // namespace psring
