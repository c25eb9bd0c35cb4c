#include <algorithm>

#include "common/base/check.h"
#include "common/cuda_ops/gpu_context.h"

namespace psring {
namespace {

using Part = Convolution::Part;

gpu::Taps TapsOf(const ConvShape& s) {
  return {uint32_t(s.height),       uint32_t(s.width),       uint32_t(s.in_channels), uint32_t(s.kernel),
          uint32_t(s.out_height()), uint32_t(s.out_width()), uint32_t(s.stride),      uint32_t(s.padding)};
}

size_t MatrixCount(const ConvShape& s, size_t images) {
  return images * s.out_height() * s.out_width() * s.kernel * s.kernel * s.in_channels;
}

class GpuConvolution : public ConvolutionOps {
 public:
  explicit GpuConvolution(GpuContext& context) : context_(context), matrix_(context.device()) {}

  void Forward(const ConvShape& s, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
               Stream& stream) override {
    CheckForward(CountsOf(s), s.activation, x, weight, bias, y);
    context_.CheckActivations({x, y});
    context_.math().Enqueue(stream, "convolution forward", [=, this]() -> absl::Status {
      PSRING_ASSIGN_OR_RETURN(const GpuWeights w, context_.Rounded(weight, bias));
      if (bias.data == nullptr) {  // the library's fused call needs one
        context_.convolved_gathered = true;
      } else {
        PSRING_ASSIGN_OR_RETURN(const bool done,
                                Convolve(Part::kForward, s, x.data, w.weight, y.data, w.bias));
        if (done) return absl::OkStatus();
      }
      PSRING_ASSIGN_OR_RETURN(void* const matrix, ReserveMatrix(s));
      return ForEachGroup(s, [&](const Group& g) -> absl::Status {
        PSRING_RETURN_IF_ERROR(Gather(s, g, x, matrix));
        return context_.Forward(g.as_linear, matrix, w, y.Slice(g.y_at, g.y_count).data);
      });
    });
  }

  void BackwardInput(const ConvShape& s, ConstSpan weight, ConstSpan saved, Span dy, Span dx, bool add,
                     Span dbias, Stream& stream) override {
    PSRING_CHECK(!add);  // only residual networks add, which need batch normalization
    CheckBackwardInput(CountsOf(s), s.activation, weight, saved, dy, dx, dbias);
    context_.CheckActivations({saved, dy, dx});
    PSRING_CHECK(s.activation != Activation::kGelu);
    context_.math().Enqueue(stream, "convolution backward, input", [=, this]() -> absl::Status {
      PSRING_RETURN_IF_ERROR(context_.ActivationGradient(s.activation, dy.count / s.out_channels,
                                                         s.out_channels, saved, dy, dbias));
      if (dx.data == nullptr) return absl::OkStatus();
      PSRING_ASSIGN_OR_RETURN(const GpuWeights w, context_.Rounded(weight, {}));
      PSRING_ASSIGN_OR_RETURN(const bool done, Convolve(Part::kInputGradient, s, dy.data, w.weight, dx.data));
      if (done) return absl::OkStatus();
      PSRING_ASSIGN_OR_RETURN(void* const matrix, ReserveMatrix(s));
      return ForEachGroup(s, [&](const Group& g) -> absl::Status {
        PSRING_RETURN_IF_ERROR(context_.InputGradient(g.as_linear, dy.Slice(g.y_at, g.y_count).data, w,
                                                      DType::kFloat32, matrix));
        return context_.Launch(g.x_count, [&]<typename T>(T) {
          return gpu::SumTaps<T>{TapsOf(s), static_cast<const float*>(matrix), Elements<T>(dx) + g.x_at};
        });
      });
    });
  }

  void BackwardWeight(const ConvShape& s, ConstSpan x, ConstSpan dy, Span dweight, Stream& stream) override {
    CheckBackwardWeight(CountsOf(s), x, dy, dweight);
    context_.CheckActivations({x, dy});
    context_.math().Enqueue(stream, "convolution backward, weight", [=, this]() -> absl::Status {
      // Not by the library: cuDNN rounds the weight gradient of a bfloat16 layer to bfloat16, and is slower
      // in float32 (measured: experiments/results/gpu.md).
      context_.convolved_gathered = true;
      PSRING_ASSIGN_OR_RETURN(void* const matrix, ReserveMatrix(s));
      return ForEachGroup(s, [&](const Group& g) -> absl::Status {
        PSRING_RETURN_IF_ERROR(Gather(s, g, x, matrix));
        return context_.WeightGradient(g.as_linear, matrix, dy.Slice(g.y_at, g.y_count).data,
                                       dweight.floats(),
                                       /*add=*/g.first > 0);
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

  // False if no library supports it.
  absl::StatusOr<bool> Convolve(Part part, const ConvShape& s, const void* from, const void* weight, void* to,
                                const void* bias = nullptr) {
    absl::StatusOr<bool> done =
        context_.math().Convolve({part, s, context_.activations(), from, weight, to, bias});
    if (done.ok()) (*done ? context_.convolved_by_library : context_.convolved_gathered) = true;
    return done;
  }

  int GroupSize(const ConvShape& s) const {
    const size_t fit = context_.options().scratch_bytes / (MatrixCount(s, 1) * sizeof(float));
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
                                                   .activation = s.activation}}));
    }
    return absl::OkStatus();
  }

  absl::Status Gather(const ConvShape& s, const Group& g, ConstSpan x, void* matrix) {
    return context_.Launch(MatrixCount(s, g.count), [&]<typename T>(T) {
      return gpu::GatherTaps<T>{TapsOf(s), Elements<T>(x) + g.x_at, static_cast<T*>(matrix)};
    });
  }

  GpuContext& context_;
  GpuScratch matrix_;
};

}  // namespace

std::unique_ptr<ConvolutionOps> MakeGpuConvolution(GpuContext& context) {
  return std::make_unique<GpuConvolution>(context);
}

}  // namespace psring
