// The elementwise and pooling ops of GPUs; linear and convolution layers are in gpu_ops.cc.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "common/cuda_ops/gpu_ops.h"
#include "common/cuda_ops/gpu_scratch.h"
#include "common/ops/ops_common.h"

namespace psring {

class GpuMemoryOps : public Ops {
 public:
  DType activations() const override { return type_; }

  void MaxPoolForward(const PoolShape& s, ConstSpan x, Span y, uint8_t* argmax, Stream& stream) override {
    CheckPool(s, y.count, x.count);
    CheckTypes({x, y});
    PSRING_CHECK(y.count <= UINT32_MAX);
    math_->Enqueue(stream, "max pool", [=, this] {
      return ForActivations([&]<typename T>(T) {
        return math_->Launch(y.count,
                             gpu::MaxPool<T>{uint32_t(s.channels), uint32_t(s.width * s.channels),
                                             static_cast<const T*>(x.data), static_cast<T*>(y.data), argmax});
      });
    });
  }

  void MaxPoolBackward(const PoolShape& s, ConstSpan dy, const uint8_t* argmax, Span dx,
                       Stream& stream) override {
    CheckPool(s, dy.count, dx.count);
    CheckTypes({dy, dx});
    PSRING_CHECK(dy.count <= UINT32_MAX);
    math_->Enqueue(stream, "max pool backward", [=, this] {
      return ForActivations([&]<typename T>(T) {
        return math_->Launch(dy.count, gpu::MaxPoolGradient<T>{
                                           uint32_t(s.channels), uint32_t(s.width * s.channels),
                                           static_cast<const T*>(dy.data), argmax, static_cast<T*>(dx.data)});
      });
    });
  }

  void SoftmaxCrossEntropy(int batch, int classes, ConstSpan logits, const uint8_t* labels, Span dlogits,
                           double* loss_sum, int64_t* correct, Stream& stream) override {
    PSRING_CHECK(logits.count == size_t(batch) * classes);
    PSRING_CHECK(dlogits.data == nullptr || dlogits.count == logits.count);
    CheckTypes({logits, dlogits});
    math_->Enqueue(stream, "softmax cross-entropy", [=, this]() -> absl::Status {
      const size_t count = size_t(batch), length = (count + kParts - 1) / kParts;
      const size_t parts = length == 0 ? 0 : (count + length - 1) / length;
      PSRING_ASSIGN_OR_RETURN(double* const losses, ReserveSums<double>(2 * (count + kParts)));
      double *const rights = losses + count, *const loss_parts = rights + count,
                    *const right_parts = loss_parts + kParts;
      PSRING_RETURN_IF_ERROR(ForActivations([&]<typename T>(T) {
        return math_->Launch(count, gpu::CrossEntropy<T>{classes, static_cast<const T*>(logits.data), labels,
                                                         static_cast<T*>(dlogits.data), losses, rights});
      }));
      PSRING_RETURN_IF_ERROR(math_->Launch(parts, gpu::SumParts{count, length, losses, loss_parts}));
      PSRING_RETURN_IF_ERROR(math_->Launch(parts, gpu::SumParts{count, length, rights, right_parts}));
      return math_->Launch(1, gpu::AddScore{uint32_t(parts), loss_parts, right_parts, loss_sum, correct});
    });
  }

  void Convert(ConstSpan from, Span to, Stream& stream) override {
    PSRING_CHECK(to.count == from.count);
    if (from.type == to.type) return stream.Copy(to.data, from.data, from.bytes());
    PSRING_CHECK(from.type == DType::kFloat32 || to.type == DType::kFloat32);
    math_->Enqueue(stream, "convert", [=, this] {
      if (from.type == DType::kFloat32) {
        return WithType(to.type, [&]<typename To>(To) {
          if constexpr (std::is_same_v<To, float>)
            return absl::OkStatus();  // the same type
          else
            return math_->Launch(to.count, gpu::Convert<float, To>{from.floats(), static_cast<To*>(to.data)});
        });
      }
      return WithType(from.type, [&]<typename From>(From) {
        if constexpr (std::is_same_v<From, float>)
          return absl::OkStatus();
        else
          return math_->Launch(to.count,
                               gpu::Convert<From, float>{static_cast<const From*>(from.data), to.floats()});
      });
    });
  }

  void Add(Span to, ConstSpan from, Stream& stream) override {
    PSRING_CHECK(to.count == from.count);
    math_->Enqueue(stream, "add", [=, this] {
      return WithType(from.type, [&]<typename From>(From) {
        if constexpr (std::is_same_v<From, float>) {
          return math_->Launch(to.count, gpu::Update<gpu::AddTo, 1>{{}, from.floats(), {to.floats()}});
        } else {
          return math_->Launch(to.count, gpu::Add<From>{to.floats(), static_cast<const From*>(from.data)});
        }
      });
    });
  }

  void FindNotFinite(ConstSpan values, uint32_t* found, Stream& stream) override {
    math_->Enqueue(stream, "search for NaN", [=, this] {
      return WithType(values.type, [&]<typename T>(T) {
        return math_->Launch(values.count, gpu::FindNotFinite<T>{static_cast<const T*>(values.data), found});
      });
    });
  }

  void AddSquares(ConstSpan values, double* sum, Stream& stream) override {
    math_->Enqueue(stream, "sum of squares", [=, this]() -> absl::Status {
      const size_t threads = std::min(values.count, kSquareThreads);
      const size_t length = (threads + kParts - 1) / kParts;
      const size_t parts = length == 0 ? 0 : (threads + length - 1) / length;
      PSRING_ASSIGN_OR_RETURN(double* const sums, ReserveSums<double>(kSquareThreads + kParts));
      PSRING_RETURN_IF_ERROR(
          math_->Launch(threads, gpu::SumSquares{values.count, threads, values.floats(), sums}));
      PSRING_RETURN_IF_ERROR(
          math_->Launch(parts, gpu::SumParts{threads, length, sums, sums + kSquareThreads}));
      return math_->Launch(1, gpu::AddSum{uint32_t(parts), sums + kSquareThreads, sum});
    });
  }

  void Apply(const OptimizerStep& step, Span weights, ConstSpan gradient, const std::array<Span, 2>& slots,
             Stream& stream) override {
    CheckStep(step, weights, gradient, slots);
    constexpr const char* kNames[] = {"sgd", "momentum", "adam"};
    math_->Enqueue(stream, kNames[step.index()], [=, this] {
      float *const w = weights.floats(), *const first = slots[0].floats(), *const second = slots[1].floats();
      const float* const g = gradient.floats();
      if (const auto* s = std::get_if<SgdStep>(&step)) {
        return math_->Launch(weights.count,
                             gpu::Update<gpu::Sgd, 1>{{s->gradient_scale, s->learning_rate}, g, {w}});
      }
      if (const auto* s = std::get_if<MomentumStep>(&step)) {
        return math_->Launch(
            weights.count,
            gpu::Update<gpu::Momentum, 2>{{s->gradient_scale, s->learning_rate, s->momentum}, g, {w, first}});
      }
      return math_->Launch(weights.count, gpu::Update<gpu::Adam, 3>{
                                              {RatesOf(std::get<AdamStep>(step))}, g, {w, first, second}});
    });
  }

 protected:
  // `activations`: float32 or bfloat16.
  GpuMemoryOps(Device& device, std::unique_ptr<GpuMath> math, DType activations)
      : math_(std::move(math)), type_(activations), sums_(device) {
    PSRING_CHECK(type_ == DType::kFloat32 || type_ == DType::kBFloat16);
  }

  void CheckTypes(std::initializer_list<ConstSpan> spans) const {
    for (const ConstSpan& span : spans) PSRING_CHECK(span.data == nullptr || span.type == type_);
  }

  // f(a value of the C++ type of activations).
  template <typename F>
  absl::Status ForActivations(const F& f) const {
    return type_ == DType::kFloat32 ? f(float{}) : f(elementwise::BFloat16{});
  }

  // Memory for partial sums, valid until the next call.
  template <typename T>
  absl::StatusOr<T*> ReserveSums(size_t count) {
    PSRING_ASSIGN_OR_RETURN(void* const memory, sums_.Reserve(count * sizeof(T)));
    return static_cast<T*>(memory);
  }

  GpuMath& math() const { return *math_; }

 private:
  // The number of partial sums, which one thread adds up at the end.
  static constexpr size_t kParts = 64;
  // Threads that add squares in parallel: enough for a large GPU, and few enough to add up quickly.
  static constexpr size_t kSquareThreads = size_t{1} << 14;

  // f(a value of the C++ type for `type`).
  template <typename F>
  static absl::Status WithType(DType type, const F& f) {
    switch (type) {
      case DType::kFloat32:
        return f(float{});
      case DType::kBFloat16:
        return f(elementwise::BFloat16{});
      case DType::kFloat16:
        return f(elementwise::Float16{});
    }
    return absl::InternalError("no such type");
  }

  const std::unique_ptr<GpuMath> math_;
  const DType type_;  // of activations
  GpuScratch sums_;
};

}  // namespace psring
