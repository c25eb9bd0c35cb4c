// The elementwise and pooling ops of GPUs: a kernel or two each. Linear and convolution layers are in
// gpu_ops.cc.
#pragma once

#include <initializer_list>
#include <memory>

#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "common/cuda_ops/gpu_ops.h"
#include "common/cuda_ops/gpu_scratch.h"

namespace psring {

class GpuMemoryOps : public Ops {
 public:
  DType activations() const override { return type_; }

  void Convert(ConstSpan from, Span to, Stream& stream) override;
  void MaxPoolForward(const PoolShape& shape, ConstSpan x, Span y, uint8_t* argmax, Stream& stream) override;
  void MaxPoolBackward(const PoolShape& shape, ConstSpan dy, const uint8_t* argmax, Span dx,
                       Stream& stream) override;
  void SoftmaxCrossEntropy(int batch, int classes, ConstSpan logits, const uint8_t* labels, Span dlogits,
                           double* loss_sum, int64_t* correct, Stream& stream) override;
  void Add(Span to, ConstSpan from, Stream& stream) override;
  void FindNotFinite(ConstSpan values, uint32_t* found, Stream& stream) override;
  void AddSquares(ConstSpan values, double* sum, Stream& stream) override;
  void Apply(const OptimizerStep& step, Span weights, ConstSpan gradient, const std::array<Span, 2>& slots,
             Stream& stream) override;

 protected:
  // `activations`: float32 or bfloat16.
  GpuMemoryOps(Device& device, std::unique_ptr<GpuMath> math, DType activations);

  void CheckTypes(std::initializer_list<ConstSpan> spans) const;

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
  const std::unique_ptr<GpuMath> math_;
  const DType type_;  // of activations
  GpuScratch sums_;
};

}  // namespace psring
