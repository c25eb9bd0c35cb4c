// Shared by the tests of ops: memory of any device, layers of both kinds, and GPUs' ops in plain loops.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <utility>
#include <vector>

#include "common/cuda_ops/gpu_ops.h"
#include "common/ops/ops.h"
#include "tests/common/cuda/gpu_in_loops.h"

namespace psring {

// A GPU's kernels and products in plain loops, and convolutions if it should have a library for them.
class HostMath : public GpuMath {
 public:
  explicit HostMath(bool convolves = false) : convolves_(convolves) {}
  std::string_view name() const override { return "host"; }
  void Enqueue(Stream& stream, const char*, std::function<absl::Status()> work) override {
    stream.Run(std::move(work));
  }
  absl::Status Launch(size_t count, const gpu::Kernel& kernel) override {
    LaunchInLoop(count, kernel);
    return absl::OkStatus();
  }
  absl::Status Multiply(const MatrixProduct& product) override {
    MultiplyInLoops(product);
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Convolve(const Convolution& convolution) override {
    if (convolves_) ConvolveInLoops(convolution);
    return convolves_;
  }

 private:
  const bool convolves_;
};

struct Implementation {
  const char* name;
  absl::StatusOr<std::unique_ptr<Ops>> (*make)(Device& device);
  bool on_gpu = false;
  friend std::ostream& operator<<(std::ostream& out, const Implementation& i) { return out << i.name; }
};

// Device memory with initial values.
template <typename T>
class OnDevice {
 public:
  OnDevice(Device& device, Stream& stream, const std::vector<T>& values)
      : stream_(stream), count_(values.size()), memory_(device.Allocate(values.size() * sizeof(T)).value()) {
    stream.Copy(memory_.data(), values.data(), count_ * sizeof(T));
    EXPECT_EQ(stream.Synchronize(), absl::OkStatus());
  }
  T* data() const { return static_cast<T*>(memory_.data()); }
  Span span() const { return {memory_.data(), count_}; }
  std::vector<T> Get() const {
    std::vector<T> values(count_);
    stream_.Copy(values.data(), memory_.data(), count_ * sizeof(T));
    EXPECT_EQ(stream_.Synchronize(), absl::OkStatus());
    return values;
  }

 private:
  Stream& stream_;
  size_t count_;
  Buffer memory_;
};

using Floats = std::vector<float>;

inline Span ViewOf(Floats& values) { return {values.data(), values.size()}; }

inline Floats Random(size_t count, int seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Floats values(count);
  for (float& value : values) value = uniform(generator);
  return values;
}

// Rounding errors of sums grow with the values, so the tolerance is relative to the largest one.
inline void ExpectNear(const Floats& actual, const Floats& expected, float tolerance = 2e-5f) {
  ASSERT_EQ(actual.size(), expected.size());
  float largest = 0;
  for (const float value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], expected[i], tolerance * std::max(1.0f, largest)) << "element " << i;
}

constexpr Activation ReluIf(bool relu) { return relu ? Activation::kRelu : Activation::kNone; }

struct LayerSizes {
  size_t x, weight, bias, y;
};

inline LayerSizes SizesOf(const LinearShape& s) {
  return {size_t(s.batch) * s.inputs, size_t(s.outputs) * s.inputs, size_t(s.outputs),
          size_t(s.batch) * s.outputs};
}
inline LayerSizes SizesOf(const ConvShape& s) {
  return {size_t(s.batch) * s.height * s.width * s.in_channels,
          size_t(s.out_channels) * s.kernel * s.kernel * s.in_channels, size_t(s.out_channels),
          size_t(s.batch) * s.out_height() * s.out_width() * s.out_channels};
}

inline void Forward(Ops& ops, const LinearShape& s, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                    Stream& stream) {
  ops.families().linear->Forward(s, x, weight, bias, {}, y, {}, stream);
}
inline void Forward(Ops& ops, const ConvShape& s, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                    Stream& stream) {
  ops.families().convolution->Forward(s, x, weight, bias, y, stream);
}
inline void Backward(Ops& ops, const LinearShape& s, ConstSpan x, ConstSpan weight, ConstSpan y, Span dy,
                     Span dx, Span dweight, Span dbias, Stream& stream) {
  ops.families().linear->BackwardInput(s, weight, y, dy, dx, dbias, stream);
  ops.families().linear->BackwardWeight(s, x, dy, dweight, stream);
}
inline void Backward(Ops& ops, const ConvShape& s, ConstSpan x, ConstSpan weight, ConstSpan y, Span dy,
                     Span dx, Span dweight, Span dbias, Stream& stream) {
  ops.families().convolution->BackwardInput(s, weight, y, dy, dx, /*add=*/false, dbias, stream);
  ops.families().convolution->BackwardWeight(s, x, dy, dweight, stream);
}

// The results of a layer for random inputs.
struct LayerResult {
  Floats y, dx, dweight, dbias, masked_dy;
};

inline void ExpectNear(const LayerResult& actual, const LayerResult& expected) {
  ExpectNear(actual.y, expected.y);
  ExpectNear(actual.masked_dy, expected.masked_dy, 0);
  ExpectNear(actual.dx, expected.dx);
  ExpectNear(actual.dweight, expected.dweight);
  ExpectNear(actual.dbias, expected.dbias);
}

// Outputs start as NaN, so that an op that adds instead of writing fails.
template <typename Shape>
LayerResult RunLayer(Ops& ops, const Shape& shape, Device& device, Stream& stream, bool want_dx = true,
                     int seed = 1) {
  const LayerSizes sizes = SizesOf(shape);
  const auto put = [&](const Floats& values) { return OnDevice<float>(device, stream, values); };
  const auto unwritten = [&](size_t count) { return put(Floats(count, std::nanf(""))); };
  const OnDevice<float> x = put(Random(sizes.x, seed)), weight = put(Random(sizes.weight, seed + 1)),
                        bias = put(Random(sizes.bias, seed + 2)), dy = put(Random(sizes.y, seed + 3)),
                        y = unwritten(sizes.y), dx = unwritten(want_dx ? sizes.x : 0),
                        dweight = unwritten(sizes.weight), dbias = unwritten(sizes.bias);
  Forward(ops, shape, x.span(), weight.span(), bias.span(), y.span(), stream);
  Backward(ops, shape, x.span(), weight.span(), y.span(), dy.span(), want_dx ? dx.span() : Span{},
           dweight.span(), dbias.span(), stream);
  return {y.Get(), dx.Get(), dweight.Get(), dbias.Get(), dy.Get()};
}

}  // namespace psring
