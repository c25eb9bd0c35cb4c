#include "common/ops/step_products.h"

#include <gtest/gtest.h>

#include "tests/common/ops/ops_testing.h"

namespace psring {
namespace {

// One layer's memory.
template <typename Shape>
struct Layer {
  explicit Layer(const Shape& layer_shape) : shape(layer_shape) {}

  void ForwardAndBackward(Ops& ops, Stream& stream) {
    Forward(ops, shape, ViewOf(x), ViewOf(weight), ViewOf(bias), ViewOf(y), stream);
    Backward(ops, shape, ViewOf(x), ViewOf(weight), ViewOf(y), ViewOf(dy), ViewOf(dx), ViewOf(dweight),
             ViewOf(dbias), stream);
  }

  const Shape shape;
  const LayerCounts sizes = CountsOf(shape);
  Floats x = Random(sizes.x, 1), weight = Random(sizes.weight, 2), bias = Random(sizes.bias, 3),
         y = Floats(sizes.y);
  Floats dy = Random(sizes.y, 4), dx = Floats(sizes.x), dweight = Floats(sizes.weight),
         dbias = Floats(sizes.bias);
};

class StepProductsTest : public testing::Test {
 protected:
  template <typename Shape>
  void Run(Layer<Shape>& layer) {
    const auto stream = MakeCpuDevice()->NewStream(StreamKind::kCompute, "test");
    layer.ForwardAndBackward(products_->ops(), *stream);
    ASSERT_EQ(stream->Synchronize(), absl::OkStatus());
  }

  const std::unique_ptr<StepProducts> products_ = MakeStepProducts(/*threads=*/1);
};

TEST_F(StepProductsTest, RepeatMakesTheProductsOfALinearLayerAgainAndNothingElse) {
  Layer<LinearShape> layer({.batch = 4, .inputs = 1024, .outputs = 6, .activation = Activation::kRelu});
  Run(layer);
  const Floats y = layer.y, dx = layer.dx, dweight = layer.dweight;
  const Floats nothing(layer.dbias.size());
  layer.y.assign(y.size(), 0);
  layer.dx.assign(dx.size(), 0);
  layer.dweight.assign(dweight.size(), 0);
  layer.dbias = nothing;
  ASSERT_EQ(products_->Repeat(), absl::OkStatus());
  EXPECT_EQ(layer.y, y);
  EXPECT_EQ(layer.dx, dx);
  EXPECT_EQ(layer.dweight, dweight);
  EXPECT_EQ(layer.dbias, nothing);  // a sum, not a product
}

TEST_F(StepProductsTest, RepeatMakesTheConvolutionsAgainAsOftenAsAsked) {
  Layer<ConvShape> layer(
      {.batch = 2, .height = 8, .width = 8, .in_channels = 16, .out_channels = 8, .kernel = 3});
  Run(layer);
  const Floats y = layer.y, dx = layer.dx, dweight = layer.dweight;
  for (int i = 0; i < 2; ++i) {
    layer.y.assign(y.size(), 0);
    layer.dx.assign(dx.size(), 0);
    layer.dweight.assign(dweight.size(), 7);
    ASSERT_EQ(products_->Repeat(), absl::OkStatus());
    EXPECT_EQ(layer.y, y);
    EXPECT_EQ(layer.dx, dx);
    EXPECT_EQ(layer.dweight, Floats(dweight.size(), 7));  // summed over groups and reordered by the layer
  }
}

}  // namespace
}  // namespace psring
