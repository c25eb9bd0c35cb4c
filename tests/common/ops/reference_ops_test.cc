// The gradients of the reference implementation of Ops.
#include "tests/common/ops/reference_ops.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "common/ops/ops.h"
#include "tests/common/ops/ops_testing.h"

namespace psring {
namespace {

// Derivatives of f at `at`, by central differences.
Floats Slopes(Floats at, const std::function<double(Floats&)>& f) {
  constexpr float kStep = 1e-2f;
  Floats slopes(at.size());
  for (size_t i = 0; i < at.size(); ++i) {
    const float before = at[i];
    at[i] = before + kStep;
    const double above = f(at);
    at[i] = before - kStep;
    slopes[i] = static_cast<float>((above - f(at)) / (2 * kStep));
    at[i] = before;
  }
  return slopes;
}

// The layer's gradients against the slopes of sum(y * dy): exact up to rounding, since layers are linear in
// each argument. Without relu, which is not differentiable at 0; the mask has its own tests.
template <typename Shape>
void ExpectGradientsAreSlopes(Ops& ops, const Shape& shape, Stream& stream) {
  const LayerCounts sizes = CountsOf(shape);
  Floats x = Random(sizes.x, 1), weight = Random(sizes.weight, 2), bias = Random(sizes.bias, 3);
  const auto device = MakeCpuDevice();
  const LayerResult result = RunLayer(ops, shape, Memory{*device, stream});
  const auto value = [&](Floats& x, Floats& weight, Floats& bias) {
    Floats y(sizes.y);
    Forward(ops, shape, ViewOf(x), ViewOf(weight), ViewOf(bias), ViewOf(y), stream);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += double{y[i]} * result.masked_dy[i];
    return sum;
  };
  ExpectNear(result.dx, Slopes(x, [&](Floats& v) { return value(v, weight, bias); }), 1e-3f);
  ExpectNear(result.dweight, Slopes(weight, [&](Floats& v) { return value(x, v, bias); }), 1e-3f);
  ExpectNear(result.dbias, Slopes(bias, [&](Floats& v) { return value(x, weight, v); }), 1e-3f);
}

class ReferenceTest : public testing::Test {
 protected:
  std::unique_ptr<Device> device_ = MakeCpuDevice();
  std::unique_ptr<Stream> stream_ = device_->NewStream(StreamKind::kCompute, "test");
  std::unique_ptr<Ops> ops_ = MakeReferenceOps();
};

TEST_F(ReferenceTest, LinearGradientsAreSlopes) {
  ExpectGradientsAreSlopes(*ops_, LinearShape{3, 5, 4}, *stream_);
}

TEST_F(ReferenceTest, ConvolutionGradientsAreSlopes) {
  ExpectGradientsAreSlopes(*ops_, ConvShape{2, 5, 4, 2, 3, 3}, *stream_);
  ExpectGradientsAreSlopes(*ops_, ConvShape{2, 5, 4, 2, 3, 3, Activation::kNone, 2, 1}, *stream_);
}

TEST_F(ReferenceTest, CrossEntropyGradientIsItsSlope) {
  const int32_t labels[] = {2, 0, 4};
  Floats logits = Random(15, 1), gradient(15);
  const auto loss_of = [&](Floats& values, Span gradient) {
    double loss = 0;
    int64_t correct = 0;
    ops_->families().loss->SoftmaxCrossEntropy(3, 5, ViewOf(values), labels, gradient, &loss, &correct,
                                               *stream_);
    return loss;
  };
  loss_of(logits, ViewOf(gradient));
  ExpectNear(gradient, Slopes(logits, [&](Floats& v) { return loss_of(v, Span{}); }), 1e-3f);
}

double Dot(const Floats& a, const Floats& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

TEST_F(ReferenceTest, LayerNormGradientsAreSlopes) {
  const LayerNormShape shape{3, 7};
  Floats x = Random(21, 1), weight = Random(7, 2), bias = Random(7, 3), dy = Random(21, 4);
  Floats y(21), statistics(6), dx(21), dweight(7), dbias(7);
  NormalizationOps& family = *ops_->families().normalization;
  const auto value = [&](Floats& x, Floats& weight, Floats& bias) {
    family.LayerNormForward(shape, ViewOf(x), ViewOf(weight), ViewOf(bias), ViewOf(y), ViewOf(statistics),
                            *stream_);
    return Dot(y, dy);
  };
  value(x, weight, bias);
  family.LayerNormBackward(shape, ViewOf(x), ViewOf(weight), ViewOf(statistics), ViewOf(dy), ViewOf(dx),
                           /*add=*/false, ViewOf(dweight), ViewOf(dbias), *stream_);
  ExpectNear(dx, Slopes(x, [&](Floats& v) { return value(v, weight, bias); }), 1e-3f);
  ExpectNear(dweight, Slopes(weight, [&](Floats& v) { return value(x, v, bias); }), 1e-3f);
  ExpectNear(dbias, Slopes(bias, [&](Floats& v) { return value(x, weight, v); }), 1e-3f);
}

TEST_F(ReferenceTest, AttentionGradientsAreSlopes) {
  const AttentionShape shape{2, 4, 2, 3};
  Floats qkv = Random(2 * 4 * 18, 1), dy = Random(2 * 4 * 6, 2), y(dy.size()), log_sum_exp(16),
         dqkv(qkv.size());
  AttentionOps& family = *ops_->families().attention;
  const auto value = [&](Floats& qkv) {
    family.Forward(shape, ViewOf(qkv), ViewOf(y), ViewOf(log_sum_exp), *stream_);
    return Dot(y, dy);
  };
  value(qkv);
  family.Backward(shape, ViewOf(qkv), ViewOf(y), ViewOf(log_sum_exp), ViewOf(dy), ViewOf(dqkv), *stream_);
  ExpectNear(dqkv, Slopes(qkv, value), 1e-3f);
}

TEST_F(ReferenceTest, BatchNormGradientsAreSlopes) {
  const BatchNormShape shape{6, 3};
  Floats x = Random(18, 1), weight = Random(3, 2), bias = Random(3, 3), dy = Random(18, 4);
  Floats y(18), statistics(6), dx(18), dweight(3), dbias(3);
  BatchNormOps& family = *ops_->families().batch_norm;
  const auto value = [&](Floats& x, Floats& weight, Floats& bias) {
    family.Statistics(shape, ViewOf(x), ViewOf(statistics), *stream_);
    family.Forward(shape, ViewOf(x), ViewOf(weight), ViewOf(bias), {}, ViewOf(statistics), ViewOf(y),
                   *stream_);
    return Dot(y, dy);
  };
  value(x, weight, bias);
  family.BackwardSums(shape, ViewOf(x), ViewOf(statistics), {}, ViewOf(dy), ViewOf(dweight), ViewOf(dbias),
                      *stream_);
  family.BackwardInput(shape, ViewOf(x), ViewOf(weight), ViewOf(statistics), ViewOf(dy), ViewOf(dweight),
                       ViewOf(dbias), ViewOf(dx), *stream_);
  ExpectNear(dx, Slopes(x, [&](Floats& v) { return value(v, weight, bias); }), 2e-3f);
  ExpectNear(dweight, Slopes(weight, [&](Floats& v) { return value(x, v, bias); }), 1e-3f);
  ExpectNear(dbias, Slopes(bias, [&](Floats& v) { return value(x, weight, v); }), 1e-3f);
}

TEST(ReferenceGeluTest, TheSlopeIsThatOfTheFunction) {
  for (double u = -6; u <= 6; u += .01) {
    const double slope = (ReferenceGelu(u + 1e-5) - ReferenceGelu(u - 1e-5)) / 2e-5;
    ASSERT_NEAR(ReferenceGeluSlope(u), slope, 1e-8) << u;
  }
}

TEST_F(ReferenceTest, ReluPassesGradientsOnlyWhereItsOutputIsPositive) {
  Floats x = {1, -1}, weight = {2, 3, -4, 1}, bias = {0, 1}, y(2);  // w x + b: -1 and -4
  const LinearShape shape{1, 2, 2, Activation::kRelu};
  bias[0] = 2;  // now 1 and -4
  Forward(*ops_, shape, ViewOf(x), ViewOf(weight), ViewOf(bias), ViewOf(y), *stream_);
  EXPECT_EQ(y, (Floats{1, 0}));
  Floats dy = {5, 7}, dx(2), dweight(4), dbias(2);
  Backward(*ops_, shape, ViewOf(x), ViewOf(weight), ViewOf(y), ViewOf(dy), ViewOf(dx), ViewOf(dweight),
           ViewOf(dbias), *stream_);
  EXPECT_EQ(dy, (Floats{5, 0}));
  EXPECT_EQ(dx, (Floats{10, 15}));
  EXPECT_EQ(dweight, (Floats{5, -5, 0, 0}));
  EXPECT_EQ(dbias, (Floats{5, 0}));
}

}  // namespace
}  // namespace psring
