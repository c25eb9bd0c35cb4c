// What the families of a GPU's ops share: the library and launcher, the activations' type, scratch memory and
// the products of linear layers; and the families that are files of their own.
#pragma once

#include <initializer_list>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "common/cuda_ops/gpu_ops.h"
#include "common/cuda_ops/gpu_scratch.h"
#include "common/ops/ops_common.h"

namespace psring {

// Converted to the type of products, the activations' type.
struct GpuWeights {
  const void *weight, *bias;
};

class GpuContext {
 public:
  // `options.activations`: float32 or bfloat16.
  GpuContext(Device& device, std::unique_ptr<GpuMath> math, const GpuOpsOptions& options);

  Device& device() const { return device_; }
  GpuMath& math() const { return *math_; }
  DType activations() const { return options_.activations; }
  const GpuOpsOptions& options() const { return options_; }

  void CheckActivations(std::initializer_list<ConstSpan> spans) const { CheckTypes(activations(), spans); }

  // Enqueues make(T()) for `count` elements, a kernel for the C++ type T of activations.
  template <typename Make>
  void Launch(Stream& stream, const char* what, size_t count, Make make) const {
    math_->Enqueue(stream, what, [this, count, make = std::move(make)] { return Launch(count, make); });
  }
  // The same inside enqueued work.
  template <typename Make>
  absl::Status Launch(size_t count, const Make& make) const {
    return WithActivations(activations(), [&](auto type) { return math_->Launch(count, make(type)); });
  }

  // Memory for partial sums, valid until the next call.
  template <typename T>
  absl::StatusOr<T*> ReserveSums(size_t count) {
    PSRING_ASSIGN_OR_RETURN(void* const memory, sums_.Reserve(count * sizeof(T)));
    return static_cast<T*>(memory);
  }

  // The rest is called inside enqueued work.

  // Valid until the next call, in stream order. No bias: null.
  absl::StatusOr<GpuWeights> Rounded(ConstSpan weight, ConstSpan bias);

  // For dy [rows][columns]: applies the slope of `activation` in place, then writes its column sums to dbias.
  // `saved`, dbias: as LinearOps::BackwardInput.
  absl::Status ActivationGradient(Activation activation, size_t rows, size_t columns, ConstSpan saved,
                                  Span dy, Span dbias);

  // The products of a linear layer.
  absl::Status Forward(const LinearShape& s, const void* x, const GpuWeights& w, void* y, bool add = false);
  absl::Status WeightGradient(const LinearShape& s, const void* x, const void* dy, float* dweight, bool add);
  absl::Status InputGradient(const LinearShape& s, const void* dy, const GpuWeights& w, DType output,
                             void* dx);

  // How convolutions were computed so far.
  bool convolved_by_library = false, convolved_gathered = false;

 private:
  Device& device_;
  const std::unique_ptr<GpuMath> math_;
  const GpuOpsOptions options_;
  GpuScratch sums_, rounded_;
};

// They borrow the context.
std::unique_ptr<LinearOps> MakeGpuLinear(GpuContext& context);
std::unique_ptr<ConvolutionOps> MakeGpuConvolution(GpuContext& context);

}  // namespace psring
