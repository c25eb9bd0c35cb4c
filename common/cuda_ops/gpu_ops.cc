#include "common/cuda_ops/gpu_ops.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/cuda_ops/gpu_memory_ops.h"
#include "common/cuda_ops/gpu_scratch.h"
#include "common/ops/ops_common.h"

namespace psring {
namespace {

using Part = Convolution::Part;

constexpr uint32_t kRowsPerChunk = 64;

class GpuOps : public GpuMemoryOps {
 public:
  GpuOps(Device& device, std::unique_ptr<GpuMath> math, const GpuOpsOptions& options)
      : GpuMemoryOps(device, std::move(math), options.activations),
        matrix_bytes_(options.scratch_bytes),
        matrix_(device),
        rounded_(device) {}

  std::string name() const override {
    std::string name(math().name());
    if (by_library_) absl::StrAppend(&name, ", ", std::string(math().convolver()));
    if (gathered_) absl::StrAppend(&name, by_library_ ? " and" : ",", " gathered convolutions");
    return name;
  }

  void LinearForward(const LinearShape& s, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                     Stream& stream) override {
    CheckForward(s, x, weight, bias, y);
    CheckTypes({x, y});
    math().Enqueue(stream, "linear forward", [=, this]() -> absl::Status {
      PSRING_ASSIGN_OR_RETURN(const Weights w, Rounded(weight, bias));
      return Forward(s, x.data, w, y.data);
    });
  }

  void LinearBackward(const LinearShape& s, ConstSpan x, ConstSpan weight, ConstSpan y, Span dy, Span dx,
                      Span dweight, Span dbias, Stream& stream) override {
    CheckForward(s, x, weight, dbias, y);
    CheckBackward(x, weight, y, dy, dx, dweight);
    CheckTypes({x, y, dy, dx});
    math().Enqueue(stream, "linear backward", [=, this]() -> absl::Status {
      PSRING_RETURN_IF_ERROR(MaskAndSum(s.batch, s.outputs, s.relu, y, dy, dbias));
      PSRING_RETURN_IF_ERROR(WeightGradient(s, x.data, dy.data, dweight.floats(), /*add=*/false));
      if (dx.data == nullptr) return absl::OkStatus();
      PSRING_ASSIGN_OR_RETURN(const Weights w, Rounded(weight, {}));
      return InputGradient(s, dy.data, w, activations(), dx.data);
    });
  }

  void ConvForward(const ConvShape& s, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                   Stream& stream) override {
    CheckForward(s, x, weight, bias, y);
    CheckTypes({x, y});
    math().Enqueue(stream, "convolution forward", [=, this]() -> absl::Status {
      PSRING_ASSIGN_OR_RETURN(const Weights w, Rounded(weight, bias));
      PSRING_ASSIGN_OR_RETURN(const bool done, Convolve(Part::kForward, s, x.data, w.weight, y.data, w.bias));
      if (done) return absl::OkStatus();
      PSRING_ASSIGN_OR_RETURN(void* const matrix, ReserveMatrix(s));
      return ForEachGroup(s, [&](const Group& g) -> absl::Status {
        PSRING_RETURN_IF_ERROR(Gather(s, g, x, matrix));
        return Forward(g.as_linear, matrix, w, y.Slice(g.y_at, g.y_count).data);
      });
    });
  }

  void ConvBackward(const ConvShape& s, ConstSpan x, ConstSpan weight, ConstSpan y, Span dy, Span dx,
                    Span dweight, Span dbias, Stream& stream) override {
    CheckForward(s, x, weight, dbias, y);
    CheckBackward(x, weight, y, dy, dx, dweight);
    CheckTypes({x, y, dy, dx});
    math().Enqueue(stream, "convolution backward", [=, this]() -> absl::Status {
      PSRING_RETURN_IF_ERROR(MaskAndSum(dy.count / s.out_channels, s.out_channels, s.relu, y, dy, dbias));
      // A library would round the weight gradient of a bfloat16 layer to bfloat16.
      bool has_dweight = false;
      if (activations() != DType::kFloat32) {
        gathered_ = true;
      } else {
        PSRING_ASSIGN_OR_RETURN(has_dweight,
                                Convolve(Part::kWeightGradient, s, x.data, dy.data, dweight.data));
      }
      Weights w = {};
      bool has_dx = dx.data == nullptr;
      if (!has_dx) {
        PSRING_ASSIGN_OR_RETURN(w, Rounded(weight, {}));
        PSRING_ASSIGN_OR_RETURN(has_dx, Convolve(Part::kInputGradient, s, dy.data, w.weight, dx.data));
      }
      if (has_dweight && has_dx) return absl::OkStatus();
      PSRING_ASSIGN_OR_RETURN(void* const matrix, ReserveMatrix(s));
      return ForEachGroup(s, [&](const Group& g) -> absl::Status {
        const void* const dy_here = dy.Slice(g.y_at, g.y_count).data;
        if (!has_dweight) {
          PSRING_RETURN_IF_ERROR(Gather(s, g, x, matrix));
          PSRING_RETURN_IF_ERROR(
              WeightGradient(g.as_linear, matrix, dy_here, dweight.floats(), /*add=*/g.first > 0));
        }
        if (has_dx) return absl::OkStatus();
        PSRING_RETURN_IF_ERROR(InputGradient(g.as_linear, dy_here, w, DType::kFloat32, matrix));
        return ForActivations([&]<typename T>(T) {
          return math().Launch(g.x_count, gpu::SumTaps<T>{TapsOf(s), static_cast<const float*>(matrix),
                                                          static_cast<T*>(dx.data) + g.x_at});
        });
      });
    });
  }

 private:
  // Images that are processed together, and their memory.
  struct Group {
    int first, count;
    size_t x_at, x_count, y_at, y_count;
    LinearShape as_linear;  // of the gathered matrix
  };

  // Converted to the type of products, the activations' type.
  struct Weights {
    const void *weight, *bias;
  };

  // False if no library supports it.
  absl::StatusOr<bool> Convolve(Part part, const ConvShape& s, const void* from, const void* with, void* to,
                                const void* bias = nullptr) {
    absl::StatusOr<bool> done = math().Convolve({part, s, activations(), from, with, to, bias});
    if (done.ok()) (*done ? by_library_ : gathered_) = true;
    return done;
  }

  // Valid until the next call, in stream order. No bias: null.
  absl::StatusOr<Weights> Rounded(ConstSpan weight, ConstSpan bias) {
    if (activations() == DType::kFloat32) return Weights{weight.data, bias.data};
    // The bias begins at the same alignment as the weight.
    const size_t bias_at = (weight.count + 127) / 128 * 128;
    PSRING_ASSIGN_OR_RETURN(void* const memory,
                            rounded_.Reserve((bias_at + bias.count) * SizeOf(DType::kBFloat16)));
    auto* const halves = static_cast<elementwise::BFloat16*>(memory);
    using Round = gpu::Convert<float, elementwise::BFloat16>;
    PSRING_RETURN_IF_ERROR(math().Launch(weight.count, Round{weight.floats(), halves}));
    if (bias.data == nullptr) return Weights{halves, nullptr};
    PSRING_RETURN_IF_ERROR(math().Launch(bias.count, Round{bias.floats(), halves + bias_at}));
    return Weights{halves, halves + bias_at};
  }

  static gpu::Taps TapsOf(const ConvShape& s) {
    return {uint32_t(s.height), uint32_t(s.width),        uint32_t(s.in_channels),
            uint32_t(s.kernel), uint32_t(s.out_height()), uint32_t(s.out_width())};
  }

  static size_t MatrixCount(const ConvShape& s, size_t images) {
    return images * s.out_height() * s.out_width() * s.kernel * s.kernel * s.in_channels;
  }

  int GroupSize(const ConvShape& s) const {
    const size_t fit = matrix_bytes_ / (MatrixCount(s, 1) * sizeof(float));
    return static_cast<int>(std::clamp<size_t>(fit, 1, s.batch));
  }

  // For gathered inputs of the activations' type, and for their gradients in float32.
  absl::StatusOr<void*> ReserveMatrix(const ConvShape& s) {
    const size_t count = MatrixCount(s, GroupSize(s));
    PSRING_CHECK(count <= UINT32_MAX);
    return matrix_.Reserve(count * sizeof(float));
  }

  template <typename F>
  absl::Status ForEachGroup(const ConvShape& s, const F& f) const {
    const size_t positions = size_t(s.out_height()) * s.out_width();
    const size_t image = size_t(s.height) * s.width * s.in_channels;
    const int most = GroupSize(s);
    for (int first = 0; first < s.batch; first += most) {
      const int count = std::min(most, s.batch - first);
      PSRING_RETURN_IF_ERROR(f(Group{.first = first,
                                     .count = count,
                                     .x_at = first * image,
                                     .x_count = count * image,
                                     .y_at = first * positions * s.out_channels,
                                     .y_count = count * positions * s.out_channels,
                                     .as_linear = {.batch = static_cast<int>(count * positions),
                                                   .inputs = s.kernel * s.kernel * s.in_channels,
                                                   .outputs = s.out_channels,
                                                   .relu = s.relu}}));
    }
    return absl::OkStatus();
  }

  absl::Status Gather(const ConvShape& s, const Group& g, ConstSpan x, void* matrix) {
    return ForActivations([&]<typename T>(T) {
      return math().Launch(
          MatrixCount(s, g.count),
          gpu::GatherTaps<T>{TapsOf(s), static_cast<const T*>(x.data) + g.x_at, static_cast<T*>(matrix)});
    });
  }

  absl::Status Forward(const LinearShape& s, const void* x, const Weights& w, void* y) {
    return math().Multiply({.m = size_t(s.batch),
                            .n = size_t(s.outputs),
                            .k = size_t(s.inputs),
                            .inputs = activations(),
                            .a = x,
                            .b = w.weight,
                            .b_transposed = true,
                            .output = activations(),
                            .c = y,
                            .bias = w.bias,
                            .relu = s.relu});
  }

  absl::Status WeightGradient(const LinearShape& s, const void* x, const void* dy, float* dweight, bool add) {
    return math().Multiply({.m = size_t(s.outputs),
                            .n = size_t(s.inputs),
                            .k = size_t(s.batch),
                            .inputs = activations(),
                            .a = dy,
                            .a_transposed = true,
                            .b = x,
                            .c = dweight,
                            .add = add});
  }

  absl::Status InputGradient(const LinearShape& s, const void* dy, const Weights& w, DType output, void* dx) {
    return math().Multiply({.m = size_t(s.batch),
                            .n = size_t(s.inputs),
                            .k = size_t(s.outputs),
                            .inputs = activations(),
                            .a = dy,
                            .b = w.weight,
                            .output = output,
                            .c = dx});
  }

  // For dy [rows][columns]: masks it where `relu` and y is 0, then writes its column sums to dbias.
  absl::Status MaskAndSum(size_t rows, size_t columns, bool relu, ConstSpan y, Span dy, Span dbias) {
    // Few enough chunks for a short second pass, and enough to keep a GPU busy with one column.
    const size_t length = std::max<size_t>(kRowsPerChunk, (rows + 255) / 256);
    const size_t chunks = (rows + length - 1) / length;
    PSRING_CHECK(rows <= UINT32_MAX && chunks * columns <= UINT32_MAX);
    PSRING_ASSIGN_OR_RETURN(float* const partial, ReserveSums<float>(chunks * columns));
    PSRING_RETURN_IF_ERROR(ForActivations([&]<typename T>(T) {
      return math().Launch(chunks * columns,
                           gpu::MaskAndSumColumns<T>{.rows = uint32_t(rows),
                                                     .columns = uint32_t(columns),
                                                     .rows_per_chunk = uint32_t(length),
                                                     .y = relu ? static_cast<const T*>(y.data) : nullptr,
                                                     .dy = static_cast<T*>(dy.data),
                                                     .partial = partial});
    }));
    return math().Launch(columns,
                         gpu::SumChunks{uint32_t(chunks), uint32_t(columns), partial, dbias.floats()});
  }

  const size_t matrix_bytes_;
  GpuScratch matrix_, rounded_;
  bool by_library_ = false, gathered_ = false;  // the kinds of convolutions so far
};

}  // namespace

std::unique_ptr<Ops> MakeGpuOps(Device& device, std::unique_ptr<GpuMath> math, const GpuOpsOptions& options) {
  return std::make_unique<GpuOps>(device, std::move(math), options);
}

}  // namespace psring
