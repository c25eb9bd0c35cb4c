// Layers on bfloat16 against the same in float32, on values that bfloat16 holds exactly: then only what is
// rounded at the end differs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "common/ops.h"
#include "common/reduce.h"

namespace psring {
namespace {

using Floats = std::vector<float>;

constexpr float kHalfUlp = 1.0f / 256;  // of a bfloat16, relative

Floats Exact(size_t count, int seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Floats values(count);
  std::vector<uint16_t> bits(count);
  for (float& value : values) value = uniform(generator);
  cpu::Convert(DType::kFloat32, values.data(), DType::kBFloat16, bits.data(), count);
  cpu::Convert(DType::kBFloat16, bits.data(), DType::kFloat32, values.data(), count);
  return values;
}

// Device memory of one type, read and written as floats.
class Tensor {
 public:
  Tensor(const Floats& values, DType type) : type_(type), count_(values.size()), memory_(count_ * 4) {
    cpu::Convert(DType::kFloat32, values.data(), type, memory_.data(), count_);
  }
  Span span() { return {memory_.data(), count_, type_}; }
  Floats floats() const {
    Floats values(count_);
    cpu::Convert(type_, memory_.data(), DType::kFloat32, values.data(), count_);
    return values;
  }

 private:
  DType type_;
  size_t count_;
  std::vector<std::byte> memory_;
};

void ExpectNear(const Floats& actual, const Floats& expected, float tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  float largest = 0;
  for (const float value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance * std::max(1.0f, largest)) << "element " << i;
  }
}

struct LayerResult {
  Floats y, dy, dx, dweight, dbias;
};

struct Counts {
  size_t x, weight, bias, y;
};
Counts CountsOf(const LinearShape& s) {
  return {size_t(s.batch) * s.inputs, size_t(s.outputs) * s.inputs, size_t(s.outputs),
          size_t(s.batch) * s.outputs};
}
Counts CountsOf(const ConvShape& s) {
  return {size_t(s.batch) * s.height * s.width * s.in_channels,
          size_t(s.out_channels) * s.kernel * s.kernel * s.in_channels, size_t(s.out_channels),
          size_t(s.batch) * s.out_height() * s.out_width() * s.out_channels};
}

class BFloat16Ops : public testing::Test {
 protected:
  void SetUp() override {
    if (BFloat16Support() == BFloat16::kNone) GTEST_SKIP() << "no AVX-512";
    ops_ = MakeOneDnnOps(1, DType::kBFloat16);
  }

  template <typename Shape>
  LayerResult Run(Ops& ops, const Shape& shape, bool want_dx) {
    const DType type = ops.activations();
    const Counts counts = CountsOf(shape);
    Tensor x(Exact(counts.x, 1), type), dy(Exact(counts.y, 4), type);
    Floats weight = Exact(counts.weight, 2), bias = Exact(counts.bias, 3);
    const float nan = std::nanf("");  // what is added to instead of written shows
    Tensor y(Floats(counts.y, nan), type), dx(Floats(want_dx ? counts.x : 0, nan), type);
    LayerResult r{.dweight = Floats(counts.weight, nan), .dbias = Floats(counts.bias, nan)};
    const Span w{weight.data(), weight.size()}, b{bias.data(), bias.size()};
    const Span dw{r.dweight.data(), r.dweight.size()}, db{r.dbias.data(), r.dbias.size()};
    const Span to = want_dx ? dx.span() : Span{};
    if constexpr (std::is_same_v<Shape, LinearShape>) {
      ops.LinearForward(shape, x.span(), w, b, y.span(), *stream_);
      ops.LinearBackward(shape, x.span(), w, y.span(), dy.span(), to, dw, db, *stream_);
    } else {
      ops.ConvForward(shape, x.span(), w, b, y.span(), *stream_);
      ops.ConvBackward(shape, x.span(), w, y.span(), dy.span(), to, dw, db, *stream_);
    }
    EXPECT_EQ(stream_->Synchronize(), absl::OkStatus());
    r.y = y.floats();
    r.dy = dy.floats();
    r.dx = dx.floats();
    return r;
  }

  template <typename Shape>
  void ExpectLikeFloat32(const Shape& shape) {
    for (const bool want_dx : {true, false}) {
      const LayerResult half = Run(*ops_, shape, want_dx), full = Run(*reference_, shape, want_dx);
      ExpectNear(half.y, full.y, kHalfUlp);
      ExpectNear(half.dy, full.dy, 0);
      ExpectNear(half.dx, full.dx, kHalfUlp);
      // Products of bfloat16 are exact in float32, in which they are added.
      ExpectNear(half.dweight, full.dweight, 2e-5f);
      ExpectNear(half.dbias, full.dbias, 2e-5f);
    }
  }

  std::unique_ptr<Device> device_ = MakeCpuDevice();
  std::unique_ptr<Stream> stream_ = device_->NewStream(StreamKind::kCompute, "test");
  std::unique_ptr<Ops> ops_, reference_ = MakeReferenceOps();
};

TEST_F(BFloat16Ops, LinearLayersAreLikeFloat32) {
  for (const int batch : {1, 7, 32}) {
    for (const auto& [inputs, outputs] : {std::pair{1, 1}, {3, 5}, {17, 10}, {64, 128}, {785, 33}}) {
      for (const bool relu : {false, true}) {
        SCOPED_TRACE(testing::Message() << batch << " x " << inputs << "-" << outputs);
        ExpectLikeFloat32(LinearShape{batch, inputs, outputs, relu});
      }
    }
  }
}

TEST_F(BFloat16Ops, ConvolutionsAreLikeFloat32) {
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
                                    .relu = relu});
      }
    }
  }
}

TEST_F(BFloat16Ops, PoolingPicksWhatFloat32Picks) {
  const PoolShape shape{.batch = 3, .height = 6, .width = 4, .channels = 5};
  const size_t full = 3 * 6 * 4 * 5;
  const auto run = [&](Ops& ops, std::vector<uint8_t>& argmax) {
    Tensor x(Exact(full, 1), ops.activations()), y(Floats(full / 4), ops.activations());
    Tensor dy(Exact(full / 4, 2), ops.activations()), dx(Floats(full, NAN), ops.activations());
    argmax.resize(full / 4);
    ops.MaxPoolForward(shape, x.span(), y.span(), argmax.data(), *stream_);
    ops.MaxPoolBackward(shape, dy.span(), argmax.data(), dx.span(), *stream_);
    EXPECT_EQ(stream_->Synchronize(), absl::OkStatus());
    return std::pair{y.floats(), dx.floats()};
  };
  std::vector<uint8_t> half_argmax, full_argmax;
  EXPECT_EQ(run(*ops_, half_argmax), run(*reference_, full_argmax));
  EXPECT_EQ(half_argmax, full_argmax);
}

TEST_F(BFloat16Ops, TheLossIsTakenInFloat32) {
  const Floats logits = Exact(4 * 10, 1);
  const std::vector<uint8_t> labels = {3, 0, 9, 3};
  const auto run = [&](Ops& ops, double& loss, int64_t& correct) {
    Tensor z(logits, ops.activations()), dz(Floats(40), ops.activations());
    ops.SoftmaxCrossEntropy(4, 10, z.span(), labels.data(), dz.span(), &loss, &correct, *stream_);
    EXPECT_EQ(stream_->Synchronize(), absl::OkStatus());
    return dz.floats();
  };
  double half_loss = 0, full_loss = 0;
  int64_t half_correct = 0, full_correct = 0;
  ExpectNear(run(*ops_, half_loss, half_correct), run(*reference_, full_loss, full_correct), kHalfUlp);
  EXPECT_EQ(half_loss, full_loss);
  EXPECT_EQ(half_correct, full_correct);
}

TEST_F(BFloat16Ops, SayWhatTheyAre) {
  EXPECT_EQ(ops_->name(), "onednn, bfloat16");
  EXPECT_EQ(ops_->activations(), DType::kBFloat16);
  EXPECT_EQ(MakeOneDnnOps(1)->name(), "onednn");
}

}  // namespace
}  // namespace psring
