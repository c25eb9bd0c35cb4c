#include "common/gpu_ops.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/ops_common.h"

namespace psring {
namespace {

// Parts of sums that one last thread adds up.
constexpr size_t kParts = 64;
// Threads that add squares side by side: enough for a large GPU, and few enough to add up quickly.
constexpr size_t kSquareThreads = size_t{1} << 14;
constexpr uint32_t kRowsPerChunk = 64;

// f(a value of the C++ type that stands for `type`).
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

// Memory in which results stand between launches.
class Scratch {
 public:
  explicit Scratch(Device& device) : device_(device) {}

  // At least `bytes`; what it held before is gone.
  absl::StatusOr<void*> Reserve(size_t bytes) {
    if (bytes > buffer_.bytes()) {
      // Queued work may still use the smaller one. Sizes double at least, so these stay few.
      if (buffer_.bytes() > 0) retired_.push_back(std::move(buffer_));
      const size_t held = retired_.empty() ? 0 : retired_.back().bytes();
      PSRING_ASSIGN_OR_RETURN(buffer_, device_.Allocate(std::max(bytes, 2 * held)));
    }
    return buffer_.data();
  }

 private:
  Device& device_;
  Buffer buffer_;
  std::vector<Buffer> retired_;
};

class GpuOps : public Ops {
 public:
  GpuOps(Device& device, std::unique_ptr<GpuMath> math, size_t scratch_bytes)
      : math_(std::move(math)), matrix_bytes_(scratch_bytes), matrix_(device), sums_(device) {}

  std::string_view name() const override { return math_->name(); }

  void LinearForward(const LinearShape& s, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                     Stream& stream) override {
    CheckForward(s, x, weight, bias, y);
    math_->Enqueue(stream, "linear forward",
                   [=, this] { return Forward(s, x.floats(), weight.floats(), bias.floats(), y.floats()); });
  }

  void LinearBackward(const LinearShape& s, ConstSpan x, ConstSpan weight, ConstSpan y, Span dy, Span dx,
                      Span dweight, Span dbias, Stream& stream) override {
    CheckForward(s, x, weight, dbias, y);
    CheckBackward(x, weight, y, dy, dx, dweight);
    math_->Enqueue(stream, "linear backward", [=, this]() -> absl::Status {
      PSRING_RETURN_IF_ERROR(MaskAndSum(s.batch, s.outputs, s.relu, y, dy, dbias));
      PSRING_RETURN_IF_ERROR(WeightGradient(s, x.floats(), dy.floats(), dweight.floats(), /*add=*/false));
      if (dx.data == nullptr) return absl::OkStatus();
      return InputGradient(s, dy.floats(), weight.floats(), dx.floats());
    });
  }

  void ConvForward(const ConvShape& s, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                   Stream& stream) override {
    CheckForward(s, x, weight, bias, y);
    math_->Enqueue(stream, "convolution forward", [=, this]() -> absl::Status {
      PSRING_ASSIGN_OR_RETURN(float* const matrix, ReserveMatrix(s));
      return ForEachGroup(s, [&](const Group& g) -> absl::Status {
        PSRING_RETURN_IF_ERROR(Gather(s, g, x.floats(), matrix));
        return Forward(g.as_linear, matrix, weight.floats(), bias.floats(), y.floats() + g.y_at);
      });
    });
  }

  void ConvBackward(const ConvShape& s, ConstSpan x, ConstSpan weight, ConstSpan y, Span dy, Span dx,
                    Span dweight, Span dbias, Stream& stream) override {
    CheckForward(s, x, weight, dbias, y);
    CheckBackward(x, weight, y, dy, dx, dweight);
    math_->Enqueue(stream, "convolution backward", [=, this]() -> absl::Status {
      PSRING_RETURN_IF_ERROR(MaskAndSum(dy.count / s.out_channels, s.out_channels, s.relu, y, dy, dbias));
      PSRING_ASSIGN_OR_RETURN(float* const matrix, ReserveMatrix(s));
      return ForEachGroup(s, [&](const Group& g) -> absl::Status {
        PSRING_RETURN_IF_ERROR(Gather(s, g, x.floats(), matrix));
        PSRING_RETURN_IF_ERROR(WeightGradient(g.as_linear, matrix, dy.floats() + g.y_at, dweight.floats(),
                                              /*add=*/g.first > 0));
        if (dx.data == nullptr) return absl::OkStatus();
        PSRING_RETURN_IF_ERROR(InputGradient(g.as_linear, dy.floats() + g.y_at, weight.floats(), matrix));
        return math_->Launch(g.x_count,
                             gpu::SumTaps{.s = TapsOf(s), .columns = matrix, .dx = dx.floats() + g.x_at});
      });
    });
  }

  void MaxPoolForward(const PoolShape& s, ConstSpan x, Span y, uint8_t* argmax, Stream& stream) override {
    CheckPool(s, y.count, x.count);
    PSRING_CHECK(y.count <= UINT32_MAX);
    math_->Enqueue(stream, "max pool", [=, this] {
      return math_->Launch(y.count, gpu::MaxPool{.channels = uint32_t(s.channels),
                                                 .row = uint32_t(s.width * s.channels),
                                                 .x = x.floats(),
                                                 .y = y.floats(),
                                                 .argmax = argmax});
    });
  }

  void MaxPoolBackward(const PoolShape& s, ConstSpan dy, const uint8_t* argmax, Span dx,
                       Stream& stream) override {
    CheckPool(s, dy.count, dx.count);
    PSRING_CHECK(dy.count <= UINT32_MAX);
    math_->Enqueue(stream, "max pool backward", [=, this] {
      return math_->Launch(dy.count, gpu::MaxPoolGradient{.channels = uint32_t(s.channels),
                                                          .row = uint32_t(s.width * s.channels),
                                                          .dy = dy.floats(),
                                                          .argmax = argmax,
                                                          .dx = dx.floats()});
    });
  }

  void SoftmaxCrossEntropy(int batch, int classes, ConstSpan logits, const uint8_t* labels, Span dlogits,
                           double* loss_sum, int64_t* correct, Stream& stream) override {
    PSRING_CHECK(logits.count == size_t(batch) * classes);
    PSRING_CHECK(dlogits.data == nullptr || dlogits.count == logits.count);
    math_->Enqueue(stream, "softmax cross-entropy", [=, this]() -> absl::Status {
      const size_t count = size_t(batch), length = (count + kParts - 1) / kParts;
      const size_t parts = length == 0 ? 0 : (count + length - 1) / length;
      PSRING_ASSIGN_OR_RETURN(double* const losses, ReserveSums<double>(2 * (count + kParts)));
      double *const rights = losses + count, *const loss_parts = rights + count,
                    *const right_parts = loss_parts + kParts;
      PSRING_RETURN_IF_ERROR(math_->Launch(
          count, gpu::CrossEntropy{.classes = classes,
                                   .logits = logits.floats(),
                                   .labels = labels,
                                   .dlogits = dlogits.data == nullptr ? nullptr : dlogits.floats(),
                                   .losses = losses,
                                   .rights = rights}));
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
        return WithType(to.type, [&](auto type) {
          using To = decltype(type);
          if constexpr (std::is_same_v<To, float>)
            return absl::OkStatus();  // the same type
          else
            return math_->Launch(to.count, gpu::Convert<float, To>{from.floats(), static_cast<To*>(to.data)});
        });
      }
      return WithType(from.type, [&](auto type) {
        using From = decltype(type);
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
      return WithType(from.type, [&](auto type) {
        using From = decltype(type);
        return math_->Launch(to.count, gpu::Add<From>{to.floats(), static_cast<const From*>(from.data)});
      });
    });
  }

  void FindNotFinite(ConstSpan values, uint32_t* found, Stream& stream) override {
    math_->Enqueue(stream, "search for NaN", [=, this] {
      return WithType(values.type, [&](auto type) {
        using T = decltype(type);
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

  void Apply(const SgdStep& step, Span weights, ConstSpan gradient, Stream& stream) override {
    PSRING_CHECK(weights.count == gradient.count);
    math_->Enqueue(stream, "sgd", [=, this] {
      return math_->Launch(weights.count, gpu::ApplySgd{step.gradient_scale, step.learning_rate,
                                                        weights.floats(), gradient.floats()});
    });
  }

  void Apply(const MomentumStep& step, Span weights, ConstSpan gradient, Span velocity,
             Stream& stream) override {
    PSRING_CHECK(weights.count == gradient.count && weights.count == velocity.count);
    math_->Enqueue(stream, "momentum", [=, this] {
      return math_->Launch(weights.count,
                           gpu::ApplyMomentum{step.gradient_scale, step.learning_rate, step.momentum,
                                              weights.floats(), gradient.floats(), velocity.floats()});
    });
  }

  void Apply(const AdamStep& step, Span weights, ConstSpan gradient, Span mean, Span variance,
             Stream& stream) override {
    PSRING_CHECK(weights.count == gradient.count && weights.count == mean.count &&
                 weights.count == variance.count);
    math_->Enqueue(stream, "adam", [=, this] {
      return math_->Launch(weights.count, gpu::ApplyAdam{RatesOf(step), weights.floats(), gradient.floats(),
                                                         mean.floats(), variance.floats()});
    });
  }

 private:
  // Pictures that are worked on together, and where they stand.
  struct Group {
    int first, count;
    size_t x_at, x_count, y_at;
    LinearShape as_linear;  // of the gathered matrix
  };

  static gpu::Taps TapsOf(const ConvShape& s) {
    return {.height = uint32_t(s.height),
            .width = uint32_t(s.width),
            .channels = uint32_t(s.in_channels),
            .kernel = uint32_t(s.kernel),
            .out_height = uint32_t(s.out_height()),
            .out_width = uint32_t(s.out_width())};
  }

  static size_t MatrixCount(const ConvShape& s, size_t pictures) {
    return pictures * s.out_height() * s.out_width() * s.kernel * s.kernel * s.in_channels;
  }

  int GroupSize(const ConvShape& s) const {
    const size_t fit = matrix_bytes_ / (MatrixCount(s, 1) * sizeof(float));
    return static_cast<int>(std::clamp<size_t>(fit, 1, s.batch));
  }

  absl::StatusOr<float*> ReserveMatrix(const ConvShape& s) {
    const size_t count = MatrixCount(s, GroupSize(s));
    PSRING_CHECK(count <= UINT32_MAX);
    PSRING_ASSIGN_OR_RETURN(void* const memory, matrix_.Reserve(count * sizeof(float)));
    return static_cast<float*>(memory);
  }

  template <typename T>
  absl::StatusOr<T*> ReserveSums(size_t count) {
    PSRING_ASSIGN_OR_RETURN(void* const memory, sums_.Reserve(count * sizeof(T)));
    return static_cast<T*>(memory);
  }

  template <typename F>
  absl::Status ForEachGroup(const ConvShape& s, const F& f) const {
    const size_t positions = size_t(s.out_height()) * s.out_width();
    const size_t picture = size_t(s.height) * s.width * s.in_channels;
    const int most = GroupSize(s);
    for (int first = 0; first < s.batch; first += most) {
      const int count = std::min(most, s.batch - first);
      PSRING_RETURN_IF_ERROR(f(Group{.first = first,
                                     .count = count,
                                     .x_at = first * picture,
                                     .x_count = count * picture,
                                     .y_at = first * positions * s.out_channels,
                                     .as_linear = {.batch = static_cast<int>(count * positions),
                                                   .inputs = s.kernel * s.kernel * s.in_channels,
                                                   .outputs = s.out_channels,
                                                   .relu = s.relu}}));
    }
    return absl::OkStatus();
  }

  absl::Status Gather(const ConvShape& s, const Group& g, const float* x, float* matrix) {
    return math_->Launch(MatrixCount(s, g.count),
                         gpu::GatherTaps{.s = TapsOf(s), .x = x + g.x_at, .columns = matrix});
  }

  absl::Status Forward(const LinearShape& s, const float* x, const float* weight, const float* bias,
                       float* y) {
    return math_->Multiply({.m = size_t(s.batch),
                            .n = size_t(s.outputs),
                            .k = size_t(s.inputs),
                            .a = x,
                            .b = weight,
                            .b_transposed = true,
                            .c = y,
                            .bias = bias,
                            .relu = s.relu});
  }

  absl::Status WeightGradient(const LinearShape& s, const float* x, const float* dy, float* dweight,
                              bool add) {
    return math_->Multiply({.m = size_t(s.outputs),
                            .n = size_t(s.inputs),
                            .k = size_t(s.batch),
                            .a = dy,
                            .a_transposed = true,
                            .b = x,
                            .c = dweight,
                            .add = add});
  }

  absl::Status InputGradient(const LinearShape& s, const float* dy, const float* weight, float* dx) {
    return math_->Multiply(
        {.m = size_t(s.batch), .n = size_t(s.inputs), .k = size_t(s.outputs), .a = dy, .b = weight, .c = dx});
  }

  // Of dy [rows][columns]: masked where `relu` and y is 0; then its columns' sums, into dbias.
  absl::Status MaskAndSum(size_t rows, size_t columns, bool relu, ConstSpan y, Span dy, Span dbias) {
    PSRING_CHECK(rows * columns <= UINT32_MAX);
    // Few enough chunks that the second pass is short, and many enough to keep a GPU busy with one column.
    const size_t length = std::max<size_t>(kRowsPerChunk, (rows + 255) / 256);
    const size_t chunks = (rows + length - 1) / length;
    PSRING_ASSIGN_OR_RETURN(float* const partial, ReserveSums<float>(chunks * columns));
    PSRING_RETURN_IF_ERROR(
        math_->Launch(chunks * columns, gpu::MaskAndSumColumns{.rows = uint32_t(rows),
                                                               .columns = uint32_t(columns),
                                                               .rows_per_chunk = uint32_t(length),
                                                               .y = relu ? y.floats() : nullptr,
                                                               .dy = dy.floats(),
                                                               .partial = partial}));
    return math_->Launch(columns,
                         gpu::SumChunks{uint32_t(chunks), uint32_t(columns), partial, dbias.floats()});
  }

  const std::unique_ptr<GpuMath> math_;
  const size_t matrix_bytes_;
  Scratch matrix_, sums_;
};

}  // namespace

std::unique_ptr<Ops> MakeGpuOps(Device& device, std::unique_ptr<GpuMath> math, size_t scratch_bytes) {
  return std::make_unique<GpuOps>(device, std::move(math), scratch_bytes);
}

}  // namespace psring
