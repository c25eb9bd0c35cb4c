// Shared by the tests of ops: memory of any device, layers of both kinds, and GPUs' ops in plain loops.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
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
  ops.LinearForward(s, x, weight, bias, y, stream);
}
inline void Forward(Ops& ops, const ConvShape& s, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                    Stream& stream) {
  ops.ConvForward(s, x, weight, bias, y, stream);
}
inline void Backward(Ops& ops, const LinearShape& s, ConstSpan x, ConstSpan weight, ConstSpan y, Span dy,
                     Span dx, Span dweight, Span dbias, Stream& stream) {
  ops.LinearBackward(s, x, weight, y, dy, dx, dweight, dbias, stream);
}
inline void Backward(Ops& ops, const ConvShape& s, ConstSpan x, ConstSpan weight, ConstSpan y, Span dy,
                     Span dx, Span dweight, Span dbias, Stream& stream) {
  ops.ConvBackward(s, x, weight, y, dy, dx, dweight, dbias, stream);
}

}  // namespace psring
