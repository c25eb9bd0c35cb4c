#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/cuda_ops/gpu_layers.h"

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

}  // namespace

std::string GpuConvolution::methods() const {
  std::string methods;
  if (by_library_) absl::StrAppend(&methods, ", ", std::string(context_.math().convolver()));
  if (gathered_) absl::StrAppend(&methods, by_library_ ? " and" : ",", " gathered convolutions");
  return methods;
}

void GpuConvolution::Forward(const ConvShape& s, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                             Stream& stream) {
  CheckForward(CountsOf(s), s.activation, x, weight, bias, y);
  context_.CheckActivations({x, y});
  context_.math().Enqueue(stream, "convolution forward", [=, this]() -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(const GpuWeights w, context_.Rounded(weight, bias));
    if (bias.data == nullptr) {  // the library's fused call needs one
      gathered_ = true;
    } else {
      PSRING_ASSIGN_OR_RETURN(const bool done, Convolve(Part::kForward, s, x.data, w.weight, y.data, w.bias));
      if (done) return absl::OkStatus();
    }
    PSRING_ASSIGN_OR_RETURN(void* const matrix, ReserveMatrix(s));
    return ForEachGroup(s, [&](const Group& g) -> absl::Status {
      PSRING_RETURN_IF_ERROR(Gather(s, g, x, matrix));
      return context_.Forward(g.as_linear, matrix, w, y.Slice(g.y_at, g.y_count).data);
    });
  });
}

void GpuConvolution::BackwardInput(const ConvShape& s, ConstSpan weight, ConstSpan saved, Span dy, Span dx,
                                   bool add, Span dbias, Stream& stream) {
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
      PSRING_RETURN_IF_ERROR(
          context_.InputGradient(g.as_linear, dy.Slice(g.y_at, g.y_count).data, w, DType::kFloat32, matrix));
      return context_.Launch(g.x_count, [&]<typename T>(T) {
        return gpu::SumTaps<T>{TapsOf(s), static_cast<const float*>(matrix), Elements<T>(dx) + g.x_at};
      });
    });
  });
}

void GpuConvolution::BackwardWeight(const ConvShape& s, ConstSpan x, ConstSpan dy, Span dweight,
                                    Stream& stream) {
  CheckBackwardWeight(CountsOf(s), x, dy, dweight);
  context_.CheckActivations({x, dy});
  context_.math().Enqueue(stream, "convolution backward, weight", [=, this]() -> absl::Status {
    // Not by the library: cuDNN rounds the weight gradient of a bfloat16 layer to bfloat16, and is slower in
    // float32 (measured: experiments/results/gpu.md).
    gathered_ = true;
    PSRING_ASSIGN_OR_RETURN(void* const matrix, ReserveMatrix(s));
    return ForEachGroup(s, [&](const Group& g) -> absl::Status {
      PSRING_RETURN_IF_ERROR(Gather(s, g, x, matrix));
      return context_.WeightGradient(g.as_linear, matrix, dy.Slice(g.y_at, g.y_count).data, dweight.floats(),
                                     /*add=*/g.first > 0);
    });
  });
}

absl::StatusOr<bool> GpuConvolution::Convolve(Part part, const ConvShape& s, const void* from,
                                              const void* weight, void* to, const void* bias) {
  absl::StatusOr<bool> done =
      context_.math().Convolve({part, s, context_.activations(), from, weight, to, bias});
  if (done.ok()) (*done ? by_library_ : gathered_) = true;
  return done;
}

int GpuConvolution::GroupSize(const ConvShape& s) const {
  const size_t fit = context_.options().scratch_bytes / (MatrixCount(s, 1) * sizeof(float));
  return static_cast<int>(std::clamp<size_t>(fit, 1, s.batch));
}

absl::StatusOr<void*> GpuConvolution::ReserveMatrix(const ConvShape& s) {
  const size_t count = MatrixCount(s, GroupSize(s));
  PSRING_CHECK(count <= UINT32_MAX);
  return matrix_.Reserve(count * sizeof(float));
}

template <typename F>
absl::Status GpuConvolution::ForEachGroup(const ConvShape& s, const F& f) const {
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

absl::Status GpuConvolution::Gather(const ConvShape& s, const Group& g, ConstSpan x, void* matrix) {
  return context_.Launch(MatrixCount(s, g.count), [&]<typename T>(T) {
    return gpu::GatherTaps<T>{TapsOf(s), Elements<T>(x) + g.x_at, static_cast<T*>(matrix)};
  });
}

}  // namespace psring
