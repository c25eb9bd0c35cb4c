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
#include "common/kernels/reduce.h"
#include "common/ops/ops_common.h"
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

// Values that bfloat16 and tf32 hold exactly.
inline Floats Exact(size_t count, int seed) {
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
  Tensor(Device& device, Stream& stream, const Floats& values, DType type)
      : type_(type), count_(values.size()), bytes_(device, stream, Converted(values, type)) {}
  Span span() const { return {bytes_.data(), count_, type_}; }
  Floats floats() const {
    const std::vector<std::byte> bytes = bytes_.Get();
    Floats values(count_);
    cpu::Convert(type_, bytes.data(), DType::kFloat32, values.data(), count_);
    return values;
  }

 private:
  static std::vector<std::byte> Converted(const Floats& values, DType type) {
    std::vector<std::byte> bytes(values.size() * SizeOf(type));
    cpu::Convert(DType::kFloat32, values.data(), type, bytes.data(), values.size());
    return bytes;
  }

  DType type_;
  size_t count_;
  OnDevice<std::byte> bytes_;
};

// Memory of one device with values of random inputs and results that start as NaN, of type `type`.
struct Memory {
  Device& device;
  Stream& stream;
  DType type = DType::kFloat32;  // of activations

  Tensor Put(const Floats& values) const { return Tensor(device, stream, values, DType::kFloat32); }
  Tensor PutActivations(size_t count, int seed) const {
    return Tensor(device, stream, Exact(count, seed), type);
  }
  Tensor Result(size_t count) const { return Put(Floats(count, std::nanf(""))); }
  Tensor ResultActivations(size_t count) const {
    return Tensor(device, stream, Floats(count, std::nanf("")), type);
  }
};

// Rounding errors of sums grow with the values, so the tolerance is relative to the largest one.
inline void ExpectNear(const Floats& actual, const Floats& expected, float tolerance = 2e-5f) {
  ASSERT_EQ(actual.size(), expected.size());
  float largest = 0;
  for (const float value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], expected[i], tolerance * std::max(1.0f, largest)) << "element " << i;
}

constexpr Activation ReluIf(bool relu) { return relu ? Activation::kRelu : Activation::kNone; }

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

// The results of a layer.
struct LayerResult {
  Floats y, dx, dweight, dbias, masked_dy;
  bool operator==(const LayerResult&) const = default;
};

// For inputs `values`, Random or Exact. Outputs start as NaN, so that an op that adds instead of writing
// fails.
template <typename Shape>
LayerResult RunLayer(Ops& ops, const Shape& shape, const Memory& m, bool want_dx = true, int seed = 1,
                     Floats (*values)(size_t, int) = Random) {
  const LayerCounts sizes = CountsOf(shape);
  const auto activations = [&](size_t count, int of) {
    return Tensor(m.device, m.stream, values(count, of), m.type);
  };
  const Tensor x = activations(sizes.x, seed), weight = m.Put(values(sizes.weight, seed + 1)),
               bias = m.Put(values(sizes.bias, seed + 2)), dy = activations(sizes.y, seed + 3),
               y = m.ResultActivations(sizes.y), dx = m.ResultActivations(want_dx ? sizes.x : 0),
               dweight = m.Result(sizes.weight), dbias = m.Result(sizes.bias);
  Forward(ops, shape, x.span(), weight.span(), bias.span(), y.span(), m.stream);
  Backward(ops, shape, x.span(), weight.span(), y.span(), dy.span(), want_dx ? dx.span() : Span{},
           dweight.span(), dbias.span(), m.stream);
  return {y.floats(), dx.floats(), dweight.floats(), dbias.floats(), dy.floats()};
}

}  // namespace psring
