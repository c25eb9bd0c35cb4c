// The gradients of the reference implementation of Ops.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

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
  const LayerSizes sizes = SizesOf(shape);
  Floats x = Random(sizes.x, 1), weight = Random(sizes.weight, 2), bias = Random(sizes.bias, 3);
  const auto device = MakeCpuDevice();
  const LayerResult result = RunLayer(ops, shape, *device, stream);
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
