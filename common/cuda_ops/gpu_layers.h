// Linear layers and convolutions on GPUs. Both borrow the context.
#pragma once

#include <string>

#include "common/cuda_ops/gpu_context.h"

namespace psring {

class GpuLinear : public LinearOps {
 public:
  explicit GpuLinear(GpuContext& context) : context_(context) {}
  void Forward(const LinearShape& s, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan residual,
               Span y, Span saved, Stream& stream) override;
  void BackwardInput(const LinearShape& s, ConstSpan weight, ConstSpan saved, Span dy, Span dx, Span dbias,
                     Stream& stream) override;
  void BackwardWeight(const LinearShape& s, ConstSpan x, ConstSpan dy, Span dweight, Stream& stream) override;

 private:
  GpuContext& context_;
};

class GpuConvolution : public ConvolutionOps {
 public:
  explicit GpuConvolution(GpuContext& context) : context_(context), matrix_(context.device()) {}

  // How the convolutions so far were computed: "", ", cudnn 9.19.0", ", gathered convolutions" or both.
  std::string methods() const;

  void Forward(const ConvShape& s, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
               Stream& stream) override;
  void BackwardInput(const ConvShape& s, ConstSpan weight, ConstSpan saved, Span dy, Span dx, bool add,
                     Span dbias, Stream& stream) override;
  void BackwardWeight(const ConvShape& s, ConstSpan x, ConstSpan dy, Span dweight, Stream& stream) override;

 private:
  // Images that are processed together, and their memory.
  struct Group {
    int first, count;
    size_t x_at, x_count, y_at, y_count;
    LinearShape as_linear;  // of the gathered matrix
  };

  // False if no library supports it.
  absl::StatusOr<bool> Convolve(Convolution::Part part, const ConvShape& s, const void* from,
                                const void* weight, void* to, const void* bias = nullptr);
  int GroupSize(const ConvShape& s) const;
  // For gathered inputs of the activations' type, and for their gradients in float32.
  absl::StatusOr<void*> ReserveMatrix(const ConvShape& s);
  template <typename F>
  absl::Status ForEachGroup(const ConvShape& s, const F& f) const;
  absl::Status Gather(const ConvShape& s, const Group& g, ConstSpan x, void* matrix);

  GpuContext& context_;
  GpuScratch matrix_;
  bool by_library_ = false, gathered_ = false;  // the kinds of convolutions so far
};

}  // namespace psring
