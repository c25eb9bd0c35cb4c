// One suite for every implementation of Ops. Layers in tf32 and bfloat16 are compared with float32 on values
// that all of them hold exactly: then only what is rounded at the end differs.
#include "common/ops/ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/kernels/reduce.h"
#include "common/ops/gradient_norm.h"
#include "tests/common/ops/ops_fixture.h"
#include "tests/common/ops/reference_ops.h"
#include "tests/on_ranks.h"

namespace psring {
namespace {

INSTANTIATE_TEST_SUITE_P(All, OpsTest, testing::ValuesIn(kImplementations),
                         [](const auto& info) { return std::string(info.param.name); });

std::vector<LinearShape> LinearShapes() {
  std::vector<LinearShape> shapes;
  for (const int batch : {1, 2, 7, 32}) {
    for (const auto& [inputs, outputs] :
         {std::pair{1, 1}, {3, 5}, {17, 10}, {64, 128}, {785, 33}, {1024, 9}}) {
      for (const bool relu : {false, true}) shapes.push_back({batch, inputs, outputs, ReluIf(relu)});
    }
  }
  return shapes;
}

class LayerOpsTest : public OpsTest {
 protected:
  bool IsReduced() const {
    return std::ranges::any_of(kReducedImplementations,
                               [](const auto& one) { return one.name == std::string(GetParam().name); });
  }

  // With and without the gradient of the input.
  template <typename Shape>
  void ExpectLayerLikeTheReference(const Shape& shape) {
    const auto cpu = MakeCpuDevice();
    const auto stream = cpu->NewStream(StreamKind::kCompute, "reference");
    const auto values = IsReduced() ? Exact : Random;
    const LayerResult expected =
        RunLayer(*MakeReferenceOps(), shape, Memory{*cpu, *stream}, /*want_dx=*/true, /*seed=*/1, values);
    const float rounding = ops_->activations() == DType::kFloat32 ? 2e-5f : 1.0f / 256;
    for (const bool want_dx : {true, false}) {
      const LayerResult result = RunLayer(*ops_, shape, memory(), want_dx, /*seed=*/1, values);
      // cuBLASLt rounds some products before it adds the bias (seen on an H100).
      ExpectNear(result.y, expected.y, IsReduced() && GetParam().on_gpu ? 2 * rounding : rounding);
      ExpectNear(result.masked_dy, expected.masked_dy, 0);
      ExpectNear(result.dx, want_dx ? expected.dx : Floats(), rounding);
      // Products of bfloat16 are exact in float32, in which they are added.
      ExpectNear(result.dweight, expected.dweight);
      ExpectNear(result.dbias, expected.dbias);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(All, LayerOpsTest, testing::ValuesIn(AllImplementations()),
                         [](const auto& info) { return std::string(info.param.name); });

std::vector<ConvShape> ConvShapes() {
  std::vector<ConvShape> shapes;
  for (const int batch : {1, 3, 8}) {
    for (const bool relu : {false, true}) {
      shapes.push_back({batch, 6, 6, 1, 4, 3, ReluIf(relu)});
      shapes.push_back({batch, 8, 5, 3, 7, 3, ReluIf(relu)});
      shapes.push_back({batch, 10, 10, 16, 32, 3, ReluIf(relu)});
      shapes.push_back({batch, 28, 28, 1, 32, 3, ReluIf(relu)});
      shapes.push_back({batch, 5, 5, 2, 3, 5, ReluIf(relu)});  // a filter as large as the picture
      shapes.push_back({batch, 4, 7, 3, 2, 1, ReluIf(relu)});
    }
  }
  // Strides and paddings of residual networks, and positions that no window reads.
  for (const int batch : {1, 5}) {
    shapes.push_back({batch, 8, 9, 3, 5, 3, Activation::kNone, 1, 1});
    shapes.push_back({batch, 9, 8, 4, 16, 3, Activation::kRelu, 2, 1});
    shapes.push_back({batch, 8, 8, 16, 8, 1, Activation::kNone, 2, 0});
    shapes.push_back({batch, 15, 14, 3, 8, 7, Activation::kRelu, 2, 3});
    shapes.push_back({batch, 7, 5, 2, 3, 2, Activation::kNone, 3, 1});
  }
  shapes.push_back(
      {6, 26, 26, 32, 64, 3, Activation::kRelu});  // the large layer of the CNN: several groups of pictures
  return shapes;
}

std::vector<ConvShape> ReducedConvShapes() {
  std::vector<ConvShape> shapes;
  for (const int batch : {1, 3, 8}) {
    for (const auto& [in, out] : {std::pair{1, 32}, {32, 64}, {3, 5}}) {
      for (const bool relu : {false, true}) shapes.push_back({batch, 9, 8, in, out, 3, ReluIf(relu)});
    }
  }
  return shapes;
}

TEST_P(LayerOpsTest, LinearLayersAgreeWithTheReference) {
  for (const LinearShape& shape : LinearShapes()) {
    SCOPED_TRACE(testing::Message() << "batch " << shape.batch << ", " << shape.inputs << "-" << shape.outputs
                                    << (shape.activation == Activation::kRelu ? ", relu" : ""));
    ExpectLayerLikeTheReference(shape);
  }
}

// oneDNN's product is another one for such shapes.
TEST(OneDnnOps, WeightGradientsOfManyRowsAreSumsOverThem) {
  const LinearShape shape{2048, 256, 1024, Activation::kNone};
  const auto device = MakeCpuDevice();
  const auto stream = device->NewStream(StreamKind::kCompute, "ops");
  const LayerResult result = RunLayer(*MakeOneDnnOps(1), shape, Memory{*device, *stream});
  const Floats x = Random(size_t(shape.batch) * shape.inputs, 1);
  for (const int output : {0, 1, 510, 1023}) {
    for (int input = 0; input < shape.inputs; ++input) {
      double expected = 0;
      for (int row = 0; row < shape.batch; ++row)
        expected += double{result.masked_dy[row * shape.outputs + output]} * x[row * shape.inputs + input];
      ASSERT_NEAR(result.dweight[output * shape.inputs + input], expected, 1e-3) << output << ", " << input;
    }
  }
}

TEST_P(LayerOpsTest, ConvolutionLayersAgreeWithTheReference) {
  for (const ConvShape& shape : IsReduced() ? ReducedConvShapes() : ConvShapes()) {
    SCOPED_TRACE(testing::Message() << "batch " << shape.batch << ", " << shape.height << "x" << shape.width
                                    << ", " << shape.in_channels << "-" << shape.out_channels << ", kernel "
                                    << shape.kernel << ", stride " << shape.stride << ", padding "
                                    << shape.padding
                                    << (shape.activation == Activation::kRelu ? ", relu" : ""));
    ExpectLayerLikeTheReference(shape);
  }
}

TEST_P(OpsTest, SameInputsGiveTheSameBits) {
  const auto other = Make();
  const LinearShape linear{32, 200, 300, Activation::kRelu};
  const ConvShape conv{6, 14, 14, 16, 32, 3, Activation::kRelu};
  const LayerResult linear_first = RunLayer(*ops_, linear, memory());
  const LayerResult conv_first = RunLayer(*ops_, conv, memory());
  for (int i = 0; i < 3; ++i) {
    for (Ops* const ops : {ops_.get(), other.get()}) {
      EXPECT_TRUE(RunLayer(*ops, linear, memory()) == linear_first);
      EXPECT_TRUE(RunLayer(*ops, conv, memory()) == conv_first);
    }
  }
}

TEST_P(OpsTest, RanksAsThreadsDoNotDisturbEachOther) {
  const LinearShape linear{16, 100, 50, Activation::kRelu};
  const ConvShape conv{4, 10, 10, 8, 16, 3, Activation::kRelu};
  constexpr int kRanks = 4;
  std::vector<LayerResult> linears(kRanks), convs(kRanks);
  OnRanks(kRanks, [&](int rank) {
    const auto ops = Make();
    const auto stream = device_->NewStream(StreamKind::kBackground, "rank");
    for (int i = 0; i < 3; ++i) {
      linears[rank] = RunLayer(*ops, linear, Memory{*device_, *stream}, true, rank);
      convs[rank] = RunLayer(*ops, conv, Memory{*device_, *stream}, true, rank);
    }
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(linears[rank].dweight, RunLayer(*ops_, linear, memory(), true, rank).dweight);
    EXPECT_EQ(convs[rank].dweight, RunLayer(*ops_, conv, memory(), true, rank).dweight);
  }
}

TEST_P(OpsTest, MaxPoolTakesTheFirstMaximum) {
  // Two channels of one 2 x 4 picture.
  const auto x = Put<float>({1, 9, 5, 9, 0, 0, 0, -1,  //
                             4, 9, 2, 9, 0, 0, 3, -2});
  const auto y = Put(Floats(4));
  const auto argmax = Put(std::vector<uint8_t>(4));
  const PoolShape shape{1, 2, 4, 2};
  ops_->families().pooling->MaxForward(shape, x.span(), y.span(), argmax.data(), *stream_);
  EXPECT_EQ(y.Get(), (Floats{5, 9, 3, 0}));
  EXPECT_EQ(argmax.Get(), (std::vector<uint8_t>{1, 0, 3, 0}));
  const auto dy = Put<float>({10, 20, 30, 40}), dx = Put(Floats(16, std::nanf("")));
  ops_->families().pooling->MaxBackward(shape, dy.span(), argmax.data(), dx.span(), *stream_);
  EXPECT_EQ(dx.Get(), (Floats{0, 20, 10, 0, 0, 40, 0, 0,  //
                              0, 0, 0, 0, 0, 0, 30, 0}));
}

TEST_P(OpsTest, MaxPoolPassesEachGradientToItsMaximum) {
  for (const PoolShape& shape : {PoolShape{1, 2, 2, 1}, PoolShape{3, 4, 6, 5}, PoolShape{2, 8, 4, 64}}) {
    const size_t count = size_t(shape.batch) * shape.height * shape.width * shape.channels;
    const Floats x = Random(count, 1);
    const auto x_there = Put(x), y_there = Put(Floats(count / 4)),
               dx_there = Put(Floats(count, std::nanf("")));
    const auto argmax = Put(std::vector<uint8_t>(count / 4));
    ops_->families().pooling->MaxForward(shape, x_there.span(), y_there.span(), argmax.data(), *stream_);
    // With the outputs as gradients, an input's gradient is the input itself if it is the maximum.
    ops_->families().pooling->MaxBackward(shape, y_there.span(), argmax.data(), dx_there.span(), *stream_);
    const Floats y = y_there.Get(), dx = dx_there.Get();
    size_t i = 0;
    for (int n = 0; n < shape.batch; ++n) {
      for (int h = 0; h < shape.height; ++h) {
        for (int w = 0; w < shape.width; ++w) {
          for (int c = 0; c < shape.channels; ++c, ++i) {
            const size_t pooled =
                ((size_t(n) * (shape.height / 2) + h / 2) * (shape.width / 2) + w / 2) * shape.channels + c;
            EXPECT_LE(x[i], y[pooled]);
            EXPECT_EQ(dx[i], x[i] == y[pooled] ? x[i] : 0);
          }
        }
      }
    }
  }
}

TEST_P(LayerOpsTest, PoolingChoosesTheSameElementsInEveryType) {
  const PoolShape shape{.batch = 3, .height = 6, .width = 4, .channels = 5};
  const size_t full = 3 * 6 * 4 * 5;
  const auto run = [&](Ops& ops, const Memory& m) -> Results {
    const Tensor x = m.PutActivations(full, 1), y = m.ResultActivations(full / 4),
                 dy = m.PutActivations(full / 4, 2), dx = m.ResultActivations(full);
    const OnDevice<uint8_t> winners(m.device, m.stream, std::vector<uint8_t>(full / 4));
    ops.families().pooling->MaxForward(shape, x.span(), y.span(), winners.data(), m.stream);
    ops.families().pooling->MaxBackward(shape, dy.span(), winners.data(), dx.span(), m.stream);
    const std::vector<uint8_t> argmax = winners.Get();
    return {y.floats(), dx.floats(), Floats(argmax.begin(), argmax.end())};
  };
  ExpectLikeTheReference(run, /*tolerance=*/0);
}

TEST_P(OpsTest, CrossEntropyOfEqualLogitsIsTheLogarithmOfTheClasses) {
  const auto logits = Put(Floats(2 * 10, 3.0f)), gradient = Put(Floats(20));
  const auto labels = Put<int32_t>({0, 7});
  const auto loss = Put<double>({1});
  const auto correct = Put<int64_t>({5});
  ops_->families().loss->SoftmaxCrossEntropy(2, 10, logits.span(), labels.data(), gradient.span(),
                                             loss.data(), correct.data(), *stream_);
  EXPECT_NEAR(loss.Get()[0], 1 + 2 * std::log(10.0), 1e-5);  // added to what stood there
  EXPECT_EQ(correct.Get()[0], 6);                            // class 0 is the first of the highest
  const Floats d = gradient.Get();
  for (int i = 0; i < 20; ++i) EXPECT_NEAR(d[i], i == 0 || i == 17 ? -0.9 : 0.1, 1e-6);
}

TEST_P(OpsTest, CrossEntropyOfLargeLogitsIsFiniteAndCanBeInPlace) {
  const auto logits = Put<float>({1000, 0, -1000});
  const auto label = Put<int32_t>({1});
  const auto loss = Put<double>({0});
  const auto correct = Put<int64_t>({0});
  ops_->families().loss->SoftmaxCrossEntropy(1, 3, logits.span(), label.data(), logits.span(), loss.data(),
                                             correct.data(), *stream_);
  EXPECT_NEAR(loss.Get()[0], 1000, 1e-3);
  EXPECT_EQ(correct.Get()[0], 0);
  EXPECT_EQ(logits.Get(), (Floats{1, -1, 0}));
  ops_->families().loss->SoftmaxCrossEntropy(1, 3, logits.span(), label.data(), Span{}, loss.data(),
                                             correct.data(),
                                             *stream_);  // no gradient wanted
  EXPECT_EQ(logits.Get(), (Floats{1, -1, 0}));
}

// With addresses that are aligned only as floats are, or differently from each other.
TEST_P(OpsTest, AddAndUpdatesAcceptAnyAlignment) {
  const size_t count = 1000;
  const Floats a = Random(count, 1), b = Random(count, 2);
  const float rate = .5f;
  for (const size_t a_at : {0, 1, 2, 3, 4}) {
    for (const size_t b_at : {0, 1, 3}) {
      for (const size_t length : {0, 1, 2, 3, 4, 5, 9, 900}) {
        SCOPED_TRACE(testing::Message() << length << " elements from " << a_at << " and " << b_at);
        Floats sum = a, updated = a;
        for (size_t i = 0; i < length; ++i) {
          sum[a_at + i] += b[b_at + i];
          SgdStep{1, rate}(&updated[a_at + i], b[b_at + i]);
        }
        const auto to = Put(a), weights = Put(a), from = Put(b);
        ops_->Add(to.span().Slice(a_at, length), from.span().Slice(b_at, length), *stream_);
        ops_->Apply(SgdStep{1, rate}, weights.span().Slice(a_at, length), from.span().Slice(b_at, length), {},
                    *stream_);
        EXPECT_EQ(to.Get(), sum);
        EXPECT_EQ(weights.Get(), updated);
      }
    }
  }
}

TEST_P(OpsTest, SixteenBitValuesAreConvertedAndAdded) {
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    for (const size_t count : {0, 1, 7, 5000}) {
      const Floats values = Random(count, 1), start = Random(count, 2);
      std::vector<uint16_t> bits(count);
      cpu::Convert(DType::kFloat32, values.data(), type, bits.data(), count);
      Floats rounded(count), sum = start;
      cpu::Convert(type, bits.data(), DType::kFloat32, rounded.data(), count);
      for (size_t i = 0; i < count; ++i) sum[i] += rounded[i];
      const auto from = Put(values), back = Put(Floats(count)), to = Put(start);
      const auto half = Put(std::vector<uint16_t>(count));
      const Span half_span{half.data(), count, type};
      ops_->Convert(from.span(), half_span, *stream_);
      ops_->Convert(half_span, back.span(), *stream_);
      ops_->Add(to.span(), half_span, *stream_);
      EXPECT_EQ(half.Get(), bits);
      EXPECT_EQ(back.Get(), rounded);
      EXPECT_EQ(to.Get(), sum);
    }
  }
}

TEST_P(OpsTest, NonFiniteValuesAreFoundInEveryType) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const float bad : {1.0f, infinity, -infinity, std::nanf("")}) {
      for (const size_t at : {0, 4095, 4096, 5000}) {
        Floats values = Random(5001, 1);
        values[at] = bad;
        std::vector<std::byte> bytes(values.size() * SizeOf(type));
        cpu::Convert(DType::kFloat32, values.data(), type, bytes.data(), values.size());
        const auto there = Put(bytes);
        const auto found = Put<uint32_t>({0});
        ops_->FindNotFinite({there.data(), values.size(), type}, found.data(), *stream_);
        EXPECT_EQ(found.Get()[0], bad == 1 ? 0u : 1u) << bad << " at " << at;
      }
    }
  }
}

TEST_P(OpsTest, SquaresAreAddedToTheSum) {
  for (const size_t count : {0, 1, 63, 64, 65, 16383, 16384, 16385, 100'003}) {
    const Floats values = Random(count, 3);
    const auto there = Put(values);
    const auto sum = Put<double>({2});
    ops_->AddSquares(there.span(), sum.data(), *stream_);
    const double expected = SumOfSquares(values.data(), count);
    EXPECT_NEAR(sum.Get()[0], 2 + expected, 1e-12 * (1 + expected)) << count;
  }
}

// The same bits from every implementation: servers and workers may use different devices.
TEST_P(OpsTest, OptimizerStepsHaveTheBitsOfTheDefinition) {
  const auto cpu = MakeCpuDevice();
  const auto cpu_stream = cpu->NewStream(StreamKind::kCompute, "reference");
  const auto reference = MakeReferenceOps();
  for (const size_t count : {1, 1000, 4099}) {
    const Floats weights = Random(count, 1), gradient = Random(count, 2), first = Random(count, 3);
    Floats second = Random(count, 4);
    for (float& value : second) value = std::abs(value);
    const auto step = [&](Ops& ops, Device& device, Stream& stream, int kind) {
      const OnDevice<float> w(device, stream, weights), g(device, stream, gradient), a(device, stream, first),
          b(device, stream, second);
      if (kind == 0) ops.Apply(SgdStep{1.0f / 3, .05f}, w.span(), g.span(), {}, stream);
      if (kind == 1) ops.Apply(MomentumStep{1.0f / 3, .05f, .9f}, w.span(), g.span(), {a.span()}, stream);
      if (kind == 2) {
        ops.Apply(AdamStep{1.0f / 3, .005f, .9f, .999f, 1e-8f, 22, .999f}, w.span(), g.span(),
                  {a.span(), b.span()}, stream);
      }
      if (kind == 3) ops.Apply(AdagradStep{1.0f / 3, .05f, 1e-10f}, w.span(), g.span(), {b.span()}, stream);
      return std::vector{w.Get(), a.Get(), b.Get()};
    };
    for (int kind = 0; kind < 4; ++kind)
      EXPECT_EQ(step(*ops_, *device_, *stream_, kind), step(*reference, *cpu, *cpu_stream, kind));
  }
}

TEST(Precision, OpsNamesContainThePrecision) {
  if (BFloat16Support() == BFloat16::kNone) GTEST_SKIP() << "no AVX-512";
  EXPECT_EQ(MakeOneDnnOps(1, DType::kBFloat16)->name(), "onednn, bfloat16");
  EXPECT_EQ(MakeOneDnnOps(1, DType::kBFloat16)->activations(), DType::kBFloat16);
  EXPECT_EQ(MakeOneDnnOps(1)->name(), "onednn");
}

TEST(Precision, NamesAreThoseOfTheFlag) {
  EXPECT_EQ(ParsePrecision("float32").value(), Precision::kFloat32);
  EXPECT_EQ(ParsePrecision("tf32").value(), Precision::kTf32);
  EXPECT_EQ(ParsePrecision("bfloat16").value(), Precision::kBFloat16);
  EXPECT_EQ(ParsePrecision("fp8").status().message(),
            "unknown precision 'fp8'; use float32, tf32 or bfloat16");
}

TEST(Precision, ACpuRejectsTf32) {
  const auto cpu = MakeCpuDevice();
  const absl::Status refused = MakeOps(*cpu, 1, Precision::kTf32).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(),
            "--precision tf32 needs a GPU (NVIDIA Ampere or newer), but this device is cpu; omit it");
}

}  // namespace
}  // namespace psring
