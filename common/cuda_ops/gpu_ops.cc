#include "common/cuda_ops/gpu_ops.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/cuda_ops/gpu_context.h"
#include "common/cuda_ops/gpu_layers.h"
#include "common/ops/ops_common.h"

namespace psring {
namespace {

// The number of partial sums, which one thread adds up at the end.
constexpr size_t kParts = 64;
// Threads that add squares in parallel: enough for a large GPU, and few enough to add up quickly.
constexpr size_t kSquareThreads = size_t{1} << 14;

// f(a value of the C++ type for `type`).
template <typename F>
absl::Status WithType(DType type, const F& f) {
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

class GpuPooling : public PoolingOps {
 public:
  explicit GpuPooling(GpuContext& context) : context_(context) {}

  void MaxForward(const PoolShape& s, ConstSpan x, Span y, uint8_t* argmax, Stream& stream) override {
    CheckPool(s, y.count, x.count);
    context_.CheckTypes({x, y});
    PSRING_CHECK(y.count <= UINT32_MAX);
    context_.math().Enqueue(stream, "max pool", [=, this] {
      return context_.ForActivations([&]<typename T>(T) {
        return context_.math().Launch(
            y.count, gpu::MaxPool<T>{uint32_t(s.channels), uint32_t(s.width * s.channels),
                                     static_cast<const T*>(x.data), static_cast<T*>(y.data), argmax});
      });
    });
  }

  void MaxBackward(const PoolShape& s, ConstSpan dy, const uint8_t* argmax, Span dx,
                   Stream& stream) override {
    CheckPool(s, dy.count, dx.count);
    context_.CheckTypes({dy, dx});
    PSRING_CHECK(dy.count <= UINT32_MAX);
    context_.math().Enqueue(stream, "max pool backward", [=, this] {
      return context_.ForActivations([&]<typename T>(T) {
        return context_.math().Launch(
            dy.count,
            gpu::MaxPoolGradient<T>{uint32_t(s.channels), uint32_t(s.width * s.channels),
                                    static_cast<const T*>(dy.data), argmax, static_cast<T*>(dx.data)});
      });
    });
  }

  void AverageForward(const PoolShape& s, ConstSpan x, Span y, Stream& stream) override {
    CheckAverage(s, x, y);
    context_.CheckTypes({x, y});
    const uint32_t positions = uint32_t(s.height) * uint32_t(s.width), channels = uint32_t(s.channels);
    context_.math().Enqueue(stream, "average pool", [=, this] {
      return context_.ForActivations([&]<typename T>(T) {
        return context_.math().Launch(
            y.count,
            gpu::AveragePool<T>{positions, channels, static_cast<const T*>(x.data), static_cast<T*>(y.data)});
      });
    });
  }

  void AverageBackward(const PoolShape& s, ConstSpan dy, Span dx, Stream& stream) override {
    CheckAverage(s, dx, dy);
    context_.CheckTypes({dy, dx});
    const uint32_t positions = uint32_t(s.height) * uint32_t(s.width), channels = uint32_t(s.channels);
    context_.math().Enqueue(stream, "average pool backward", [=, this] {
      return context_.ForActivations([&]<typename T>(T) {
        return context_.math().Launch(
            dx.count, gpu::AveragePoolGradient<T>{positions, channels, static_cast<const T*>(dy.data),
                                                  static_cast<T*>(dx.data)});
      });
    });
  }

 private:
  GpuContext& context_;
};

class GpuLoss : public LossOps {
 public:
  explicit GpuLoss(GpuContext& context) : context_(context) {}

  void SoftmaxCrossEntropy(int batch, int classes, ConstSpan logits, const int32_t* labels, Span dlogits,
                           double* loss_sum, int64_t* correct, Stream& stream) override {
    PSRING_CHECK(logits.count == size_t(batch) * classes);
    PSRING_CHECK(dlogits.data == nullptr || dlogits.count == logits.count);
    context_.CheckTypes({logits, dlogits});
    context_.math().Enqueue(stream, "softmax cross-entropy", [=, this]() -> absl::Status {
      const size_t count = size_t(batch), length = (count + kParts - 1) / kParts;
      const size_t parts = length == 0 ? 0 : (count + length - 1) / length;
      PSRING_ASSIGN_OR_RETURN(double* const losses, context_.ReserveSums<double>(2 * (count + kParts)));
      double *const rights = losses + count, *const loss_parts = rights + count,
                    *const right_parts = loss_parts + kParts;
      PSRING_RETURN_IF_ERROR(context_.ForActivations([&]<typename T>(T) {
        return context_.math().Launch(
            count, gpu::CrossEntropy<T>{classes, kIgnoredLabel, static_cast<const T*>(logits.data), labels,
                                        static_cast<T*>(dlogits.data), losses, rights});
      }));
      PSRING_RETURN_IF_ERROR(context_.math().Launch(parts, gpu::SumParts{count, length, losses, loss_parts}));
      PSRING_RETURN_IF_ERROR(
          context_.math().Launch(parts, gpu::SumParts{count, length, rights, right_parts}));
      return context_.math().Launch(
          1, gpu::AddScore{uint32_t(parts), loss_parts, right_parts, loss_sum, correct});
    });
  }

 private:
  GpuContext& context_;
};

class GpuOps : public Ops {
 public:
  GpuOps(Device& device, std::unique_ptr<GpuMath> math, const GpuOpsOptions& options)
      : context_(device, std::move(math), options),
        linear_(context_),
        convolution_(context_),
        pooling_(context_),
        loss_(context_) {
    families_ = {.linear = &linear_, .convolution = &convolution_, .pooling = &pooling_, .loss = &loss_};
  }

  std::string name() const override {
    return absl::StrCat(std::string(context_.math().name()), convolution_.methods());
  }
  DType activations() const override { return context_.activations(); }

  void Convert(ConstSpan from, Span to, Stream& stream) override {
    PSRING_CHECK(to.count == from.count);
    if (from.type == to.type) return stream.Copy(to.data, from.data, from.bytes());
    PSRING_CHECK(from.type == DType::kFloat32 || to.type == DType::kFloat32);
    context_.math().Enqueue(stream, "convert", [=, this] {
      if (from.type == DType::kFloat32) {
        return WithType(to.type, [&]<typename To>(To) {
          if constexpr (std::is_same_v<To, float>)
            return absl::OkStatus();  // the same type
          else
            return context_.math().Launch(to.count,
                                          gpu::Convert<float, To>{from.floats(), static_cast<To*>(to.data)});
        });
      }
      return WithType(from.type, [&]<typename From>(From) {
        if constexpr (std::is_same_v<From, float>)
          return absl::OkStatus();
        else
          return context_.math().Launch(
              to.count, gpu::Convert<From, float>{static_cast<const From*>(from.data), to.floats()});
      });
    });
  }

  void Add(Span to, ConstSpan from, Stream& stream) override {
    PSRING_CHECK(to.count == from.count);
    context_.math().Enqueue(stream, "add", [=, this] {
      return WithType(from.type, [&]<typename From>(From) {
        if constexpr (std::is_same_v<From, float>) {
          return context_.math().Launch(to.count,
                                        gpu::Update<gpu::AddTo, 1>{{}, from.floats(), {to.floats()}});
        } else {
          return context_.math().Launch(to.count,
                                        gpu::Add<From>{to.floats(), static_cast<const From*>(from.data)});
        }
      });
    });
  }

  void FindNotFinite(ConstSpan values, uint32_t* found, Stream& stream) override {
    context_.math().Enqueue(stream, "search for NaN", [=, this] {
      return WithType(values.type, [&]<typename T>(T) {
        return context_.math().Launch(values.count,
                                      gpu::FindNotFinite<T>{static_cast<const T*>(values.data), found});
      });
    });
  }

  void AddSquares(ConstSpan values, double* sum, Stream& stream) override {
    context_.math().Enqueue(stream, "sum of squares", [=, this]() -> absl::Status {
      const size_t threads = std::min(values.count, kSquareThreads);
      const size_t length = (threads + kParts - 1) / kParts;
      const size_t parts = length == 0 ? 0 : (threads + length - 1) / length;
      PSRING_ASSIGN_OR_RETURN(double* const sums, context_.ReserveSums<double>(kSquareThreads + kParts));
      PSRING_RETURN_IF_ERROR(
          context_.math().Launch(threads, gpu::SumSquares{values.count, threads, values.floats(), sums}));
      PSRING_RETURN_IF_ERROR(
          context_.math().Launch(parts, gpu::SumParts{threads, length, sums, sums + kSquareThreads}));
      return context_.math().Launch(1, gpu::AddSum{uint32_t(parts), sums + kSquareThreads, sum});
    });
  }

  void Apply(const OptimizerStep& step, Span weights, ConstSpan gradient, const std::array<Span, 2>& slots,
             Stream& stream) override {
    CheckStep(step, weights, gradient, slots);
    constexpr const char* kNames[] = {"sgd", "momentum", "adagrad", "adam"};
    context_.math().Enqueue(stream, kNames[step.index()], [=, this] {
      float *const w = weights.floats(), *const first = slots[0].floats(), *const second = slots[1].floats();
      const float* const g = gradient.floats();
      if (const auto* s = std::get_if<SgdStep>(&step)) {
        return context_.math().Launch(
            weights.count, gpu::Update<gpu::Sgd, 1>{{s->gradient_scale, s->learning_rate}, g, {w}});
      }
      if (const auto* s = std::get_if<MomentumStep>(&step)) {
        return context_.math().Launch(
            weights.count,
            gpu::Update<gpu::Momentum, 2>{{s->gradient_scale, s->learning_rate, s->momentum}, g, {w, first}});
      }
      if (const auto* s = std::get_if<AdagradStep>(&step)) {
        return context_.math().Launch(
            weights.count,
            gpu::Update<gpu::Adagrad, 2>{{s->gradient_scale, s->learning_rate, s->epsilon}, g, {w, first}});
      }
      return context_.math().Launch(
          weights.count,
          gpu::Update<gpu::Adam, 3>{{RatesOf(std::get<AdamStep>(step))}, g, {w, first, second}});
    });
  }

 private:
  GpuContext context_;  // declared first: the families borrow it
  GpuLinear linear_;
  GpuConvolution convolution_;
  GpuPooling pooling_;
  GpuLoss loss_;
};

}  // namespace

std::unique_ptr<Ops> MakeGpuOps(Device& device, std::unique_ptr<GpuMath> math, const GpuOpsOptions& options) {
  return std::make_unique<GpuOps>(device, std::move(math), options);
}

}  // namespace psring
