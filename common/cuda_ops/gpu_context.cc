#include "common/cuda_ops/gpu_context.h"

#include <algorithm>

namespace psring {
namespace {

constexpr uint32_t kRowsPerChunk = 64;

}  // namespace

GpuContext::GpuContext(Device& device, std::unique_ptr<GpuMath> math, const GpuOpsOptions& options)
    : device_(device), math_(std::move(math)), options_(options), sums_(device), rounded_(device) {
  PSRING_CHECK(activations() == DType::kFloat32 || activations() == DType::kBFloat16);
}

absl::StatusOr<GpuWeights> GpuContext::Rounded(ConstSpan weight, ConstSpan bias) {
  if (activations() == DType::kFloat32) return GpuWeights{weight.data, bias.data};
  // The bias begins at the same alignment as the weight.
  const size_t bias_at = (weight.count + 127) / 128 * 128;
  PSRING_ASSIGN_OR_RETURN(void* const memory,
                          rounded_.Reserve((bias_at + bias.count) * SizeOf(DType::kBFloat16)));
  auto* const halves = static_cast<elementwise::BFloat16*>(memory);
  using Round = gpu::Convert<float, elementwise::BFloat16>;
  PSRING_RETURN_IF_ERROR(math_->Launch(weight.count, Round{weight.floats(), halves}));
  if (bias.data == nullptr) return GpuWeights{halves, nullptr};
  PSRING_RETURN_IF_ERROR(math_->Launch(bias.count, Round{bias.floats(), halves + bias_at}));
  return GpuWeights{halves, halves + bias_at};
}

absl::Status GpuContext::ActivationGradient(Activation activation, size_t rows, size_t columns,
                                            ConstSpan saved, Span dy, Span dbias) {
  if (dbias.data == nullptr) return absl::OkStatus();  // then there is no activation
  // Few enough chunks for a short second pass, and enough to keep a GPU busy with one column.
  const size_t length = std::max<size_t>(kRowsPerChunk, (rows + 255) / 256);
  const size_t chunks = (rows + length - 1) / length;
  PSRING_CHECK(rows <= UINT32_MAX && chunks * columns <= UINT32_MAX);
  PSRING_ASSIGN_OR_RETURN(float* const partial, ReserveSums<float>(chunks * columns));
  PSRING_RETURN_IF_ERROR(Launch(chunks * columns, [&]<typename T>(T) {
    return gpu::GradientAndSumColumns<T>{
        .rows = uint32_t(rows),
        .columns = uint32_t(columns),
        .rows_per_chunk = uint32_t(length),
        .gelu = activation == Activation::kGelu,
        .saved = activation == Activation::kNone ? nullptr : Elements<T>(saved),
        .dy = Elements<T>(dy),
        .partial = partial};
  }));
  return math_->Launch(columns, gpu::SumChunks{uint32_t(chunks), uint32_t(columns), partial, dbias.floats()});
}

absl::Status GpuContext::Forward(const LinearShape& s, const void* x, const GpuWeights& w, void* y,
                                 bool add) {
  return math_->Multiply({.m = size_t(s.batch),
                          .n = size_t(s.outputs),
                          .k = size_t(s.inputs),
                          .inputs = activations(),
                          .a = x,
                          .b = w.weight,
                          .b_transposed = true,
                          .output = activations(),
                          .c = y,
                          .bias = w.bias,
                          .relu = s.activation == Activation::kRelu,
                          .add = add});
}

absl::Status GpuContext::WeightGradient(const LinearShape& s, const void* x, const void* dy, float* dweight,
                                        bool add) {
  return math_->Multiply({.m = size_t(s.outputs),
                          .n = size_t(s.inputs),
                          .k = size_t(s.batch),
                          .inputs = activations(),
                          .a = dy,
                          .a_transposed = true,
                          .b = x,
                          .c = dweight,
                          .add = add});
}

absl::Status GpuContext::InputGradient(const LinearShape& s, const void* dy, const GpuWeights& w,
                                       DType output, void* dx) {
  return math_->Multiply({.m = size_t(s.batch),
                          .n = size_t(s.inputs),
                          .k = size_t(s.outputs),
                          .inputs = activations(),
                          .a = dy,
                          .b = w.weight,
                          .output = output,
                          .c = dx});
}

}  // namespace psring
