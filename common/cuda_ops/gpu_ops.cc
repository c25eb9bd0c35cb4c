#include "common/cuda_ops/gpu_ops.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/cuda_ops/gpu_context.h"

namespace psring {
namespace {

// The number of partial sums, which one thread adds up at the end.
constexpr size_t kParts = 64;
// Threads that add squares in parallel: enough for a large GPU, and few enough to add up quickly.
constexpr size_t kSquareThreads = size_t{1} << 14;

class GpuPooling : public PoolingOps {
 public:
  explicit GpuPooling(GpuContext& context) : context_(context) {}

  void MaxForward(const PoolShape& s, ConstSpan x, Span y, uint8_t* argmax, Stream& stream) override {
    CheckPool(s, y.count, x.count);
    context_.CheckActivations({x, y});
    PSRING_CHECK(y.count <= UINT32_MAX);
    context_.Launch(stream, "max pool", y.count, [=]<typename T>(T) {
      return gpu::MaxPool<T>{uint32_t(s.channels), uint32_t(s.width * s.channels), Elements<T>(x),
                             Elements<T>(y), argmax};
    });
  }

  void MaxBackward(const PoolShape& s, ConstSpan dy, const uint8_t* argmax, Span dx,
                   Stream& stream) override {
    CheckPool(s, dy.count, dx.count);
    context_.CheckActivations({dy, dx});
    PSRING_CHECK(dy.count <= UINT32_MAX);
    context_.Launch(stream, "max pool backward", dy.count, [=]<typename T>(T) {
      return gpu::MaxPoolGradient<T>{uint32_t(s.channels), uint32_t(s.width * s.channels), Elements<T>(dy),
                                     argmax, Elements<T>(dx)};
    });
  }

  void AverageForward(const PoolShape& s, ConstSpan x, Span y, Stream& stream) override {
    CheckAverage(s, x, y);
    context_.CheckActivations({x, y});
    const uint32_t positions = uint32_t(s.height) * uint32_t(s.width), channels = uint32_t(s.channels);
    context_.Launch(stream, "average pool", y.count, [=]<typename T>(T) {
      return gpu::AveragePool<T>{positions, channels, Elements<T>(x), Elements<T>(y)};
    });
  }

  void AverageBackward(const PoolShape& s, ConstSpan dy, Span dx, Stream& stream) override {
    CheckAverage(s, dx, dy);
    context_.CheckActivations({dy, dx});
    const uint32_t positions = uint32_t(s.height) * uint32_t(s.width), channels = uint32_t(s.channels);
    context_.Launch(stream, "average pool backward", dx.count, [=]<typename T>(T) {
      return gpu::AveragePoolGradient<T>{positions, channels, Elements<T>(dy), Elements<T>(dx)};
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
    CheckLoss(batch, classes, logits, dlogits);
    context_.CheckActivations({logits, dlogits});
    context_.math().Enqueue(stream, "softmax cross-entropy", [=, this]() -> absl::Status {
      const size_t count = size_t(batch), length = (count + kParts - 1) / kParts;
      const size_t parts = length == 0 ? 0 : (count + length - 1) / length;
      PSRING_ASSIGN_OR_RETURN(double* const losses, context_.ReserveSums<double>(2 * (count + kParts)));
      double *const rights = losses + count, *const loss_parts = rights + count,
                    *const right_parts = loss_parts + kParts;
      PSRING_RETURN_IF_ERROR(context_.Launch(count, [&]<typename T>(T) {
        return gpu::CrossEntropy<T>{classes, kIgnoredLabel, Elements<T>(logits), labels, Elements<T>(dlogits),
                                    losses,  rights};
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
      : context_(device, std::move(math), options) {
    families_.linear = MakeGpuLinear(context_);
    families_.convolution = MakeGpuConvolution(context_);
    families_.pooling = std::make_unique<GpuPooling>(context_);
    families_.loss = std::make_unique<GpuLoss>(context_);
  }
  ~GpuOps() override { families_ = {}; }  // before the context that they borrow

  std::string name() const override {
    const GpuContext& c = context_;
    std::string name(c.math().name());
    if (c.convolved_by_library) absl::StrAppend(&name, ", ", std::string(c.math().convolver()));
    if (c.convolved_gathered) {
      absl::StrAppend(&name, c.convolved_by_library ? " and" : ",", " gathered convolutions");
    }
    return name;
  }
  DType activations() const override { return context_.activations(); }

  void Convert(ConstSpan from, Span to, Stream& stream) override {
    PSRING_CHECK(to.count == from.count);
    if (from.type == to.type) return stream.Copy(to.data, from.data, from.bytes());
    PSRING_CHECK(from.type == DType::kFloat32 || to.type == DType::kFloat32);
    context_.math().Enqueue(stream, "convert", [=, this] {
      if (from.type == DType::kFloat32) {
        return WithHalf(to.type, [&]<typename To>(To) {
          return context_.math().Launch(to.count, gpu::Convert<float, To>{from.floats(), Elements<To>(to)});
        });
      }
      return WithHalf(from.type, [&]<typename From>(From) {
        return context_.math().Launch(to.count, gpu::Convert<From, float>{Elements<From>(from), to.floats()});
      });
    });
  }

  void Add(Span to, ConstSpan from, Stream& stream) override {
    PSRING_CHECK(to.count == from.count);
    context_.math().Enqueue(stream, "add", [=, this] {
      if (from.type == DType::kFloat32) {
        return context_.math().Launch(to.count, gpu::Update<gpu::AddTo>{{}, from.floats(), {to.floats()}});
      }
      return WithHalf(from.type, [&]<typename From>(From) {
        return context_.math().Launch(to.count, gpu::Add<From>{to.floats(), Elements<From>(from)});
      });
    });
  }

  void FindNotFinite(ConstSpan values, uint32_t* found, Stream& stream) override {
    context_.math().Enqueue(stream, "search for NaN", [=, this] {
      return WithType(values.type, [&]<typename T>(T) {
        return context_.math().Launch(values.count, gpu::FindNotFinite<T>{Elements<T>(values), found});
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
      const auto launch = [&]<typename Rule>(const Rule& rule) {
        gpu::Update<Rule> update{rule, gradient.floats(), {weights.floats()}};
        for (int i = 0; i < Rule::kSlots; ++i) update.updated[1 + i] = slots[size_t(i)].floats();
        return context_.math().Launch(weights.count, update);
      };
      return std::visit(launch, step);
    });
  }

 private:
  GpuContext context_;
};

}  // namespace

std::unique_ptr<Ops> MakeGpuOps(Device& device, std::unique_ptr<GpuMath> math, const GpuOpsOptions& options) {
  return std::make_unique<GpuOps>(device, std::move(math), options);
}

}  // namespace psring
