// Layers in tf32 and bfloat16 against the same in float32, on values that both hold exactly: then only what
// is rounded at the end differs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/cuda/cuda_device.h"
#include "common/devices/make_ops.h"
#include "common/ops/ops.h"
#include "common/reduce/reduce.h"
#include "tests/common/ops/ops_fixture.h"
#include "tests/common/ops/reference_ops.h"

namespace psring {
namespace {

constexpr float kHalfUlp = 1.0f / 256;  // of a bfloat16, relative

void ExpectWithin(const Floats& actual, const Floats& expected, float tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  float largest = 0;
  for (const float value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], expected[i], tolerance * std::max(1.0f, largest)) << "element " << i;
}

struct ReducedLayerResult {
  Floats y, dy, dx, dweight, dbias;
};

// An implementation, its device and a stream there.
struct Bench {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Stream> stream;

  Tensor Put(const Floats& values, DType type = DType::kFloat32) const {
    return Tensor(*device, *stream, values, type);
  }
  DType type() const { return ops->activations(); }
};

class ReducedPrecision : public testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Device>> device =
        GetParam().on_gpu ? MakeCudaDevice(0) : absl::StatusOr<std::unique_ptr<Device>>(MakeCpuDevice());
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    reduced_.device = *std::move(device);
    MadeOps ops = GetParam().make(*reduced_.device);
    // A processor or a GPU that is older than the type.
    if (absl::IsInvalidArgument(ops.status())) GTEST_SKIP() << ops.status().message();
    ASSERT_EQ(ops.status(), absl::OkStatus());
    reduced_.ops = *std::move(ops);
    reduced_.stream = reduced_.device->NewStream(StreamKind::kCompute, "test");
    exact_ = {.device = MakeCpuDevice(), .ops = MakeReferenceOps()};
    exact_.stream = exact_.device->NewStream(StreamKind::kCompute, "test");
    if (reduced_.type() == DType::kFloat32) rounding_ = 2e-5f;
  }

  template <typename Shape>
  static ReducedLayerResult Run(const Bench& on, const Shape& shape, bool want_dx) {
    const DType type = on.type();
    const LayerSizes sizes = SizesOf(shape);
    const float nan = std::nanf("");  // what is added to instead of written shows
    const Tensor x = on.Put(Exact(sizes.x, 1), type), dy = on.Put(Exact(sizes.y, 4), type),
                 weight = on.Put(Exact(sizes.weight, 2)), bias = on.Put(Exact(sizes.bias, 3)),
                 y = on.Put(Floats(sizes.y, nan), type),
                 dx = on.Put(Floats(want_dx ? sizes.x : 0, nan), type),
                 dweight = on.Put(Floats(sizes.weight, nan)), dbias = on.Put(Floats(sizes.bias, nan));
    Forward(*on.ops, shape, x.span(), weight.span(), bias.span(), y.span(), *on.stream);
    Backward(*on.ops, shape, x.span(), weight.span(), y.span(), dy.span(), want_dx ? dx.span() : Span{},
             dweight.span(), dbias.span(), *on.stream);
    return {y.floats(), dy.floats(), dx.floats(), dweight.floats(), dbias.floats()};
  }

  template <typename Shape>
  void ExpectLikeFloat32(const Shape& shape) {
    for (const bool want_dx : {true, false}) {
      const ReducedLayerResult half = Run(reduced_, shape, want_dx), full = Run(exact_, shape, want_dx);
      // cuBLASLt rounds some products before it adds the bias (seen on an H100).
      ExpectWithin(half.y, full.y, GetParam().on_gpu ? 2 * rounding_ : rounding_);
      ExpectWithin(half.dy, full.dy, 0);
      ExpectWithin(half.dx, full.dx, rounding_);
      // Products of bfloat16 are exact in float32, in which they are added.
      ExpectWithin(half.dweight, full.dweight, 2e-5f);
      ExpectWithin(half.dbias, full.dbias, 2e-5f);
    }
  }

  Bench reduced_, exact_;
  float rounding_ = kHalfUlp;  // of activations
};

INSTANTIATE_TEST_SUITE_P(All, ReducedPrecision, testing::ValuesIn(kReducedImplementations),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ReducedPrecision, LinearLayersAreLikeFloat32) {
  for (const int batch : {1, 7, 32}) {
    for (const auto& [inputs, outputs] : {std::pair{1, 1}, {3, 5}, {17, 10}, {64, 128}, {785, 33}}) {
      for (const bool relu : {false, true}) {
        SCOPED_TRACE(testing::Message() << batch << " x " << inputs << "-" << outputs);
        ExpectLikeFloat32(LinearShape{batch, inputs, outputs, ReluIf(relu)});
      }
    }
  }
}

TEST_P(ReducedPrecision, ConvolutionsAreLikeFloat32) {
  for (const int batch : {1, 3, 8}) {
    for (const auto& [in, out] : {std::pair{1, 32}, {32, 64}, {3, 5}}) {
      for (const bool relu : {false, true}) {
        SCOPED_TRACE(testing::Message() << batch << " x " << in << "-" << out);
        ExpectLikeFloat32(ConvShape{.batch = batch,
                                    .height = 9,
                                    .width = 8,
                                    .in_channels = in,
                                    .out_channels = out,
                                    .kernel = 3,
                                    .activation = ReluIf(relu)});
      }
    }
  }
}

TEST_P(ReducedPrecision, PoolingChoosesTheSameElementsAsFloat32) {
  const PoolShape shape{.batch = 3, .height = 6, .width = 4, .channels = 5};
  const size_t full = 3 * 6 * 4 * 5;
  const auto run = [&](const Bench& on, std::vector<uint8_t>& argmax) {
    const Tensor x = on.Put(Exact(full, 1), on.type()), y = on.Put(Floats(full / 4), on.type()),
                 dy = on.Put(Exact(full / 4, 2), on.type()), dx = on.Put(Floats(full, NAN), on.type());
    const OnDevice<uint8_t> winners(*on.device, *on.stream, std::vector<uint8_t>(full / 4));
    on.ops->families().pooling->MaxForward(shape, x.span(), y.span(), winners.data(), *on.stream);
    on.ops->families().pooling->MaxBackward(shape, dy.span(), winners.data(), dx.span(), *on.stream);
    argmax = winners.Get();
    return std::pair{y.floats(), dx.floats()};
  };
  std::vector<uint8_t> half_argmax, full_argmax;
  EXPECT_EQ(run(reduced_, half_argmax), run(exact_, full_argmax));
  EXPECT_EQ(half_argmax, full_argmax);
}

TEST_P(ReducedPrecision, TheLossIsComputedInFloat32) {
  const Floats logits = Exact(4 * 10, 1);
  const auto run = [&](const Bench& on, double& loss, int64_t& correct) {
    const Tensor z = on.Put(logits, on.type()), dz = on.Put(Floats(40), on.type());
    const OnDevice<int32_t> labels(*on.device, *on.stream, {3, 0, 9, 3});
    const OnDevice<double> loss_there(*on.device, *on.stream, {0});
    const OnDevice<int64_t> correct_there(*on.device, *on.stream, {0});
    on.ops->families().loss->SoftmaxCrossEntropy(4, 10, z.span(), labels.data(), dz.span(), loss_there.data(),
                                                 correct_there.data(), *on.stream);
    loss = loss_there.Get()[0];
    correct = correct_there.Get()[0];
    return dz.floats();
  };
  double half_loss = 0, full_loss = 0;
  int64_t half_correct = 0, full_correct = 0;
  ExpectWithin(run(reduced_, half_loss, half_correct), run(exact_, full_loss, full_correct), rounding_);
  EXPECT_NEAR(half_loss, full_loss, 1e-5);
  EXPECT_EQ(half_correct, full_correct);
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
