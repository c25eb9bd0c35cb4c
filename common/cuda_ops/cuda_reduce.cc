#include "common/cuda_ops/cuda_reduce.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/cuda/cuda_context.h"
#include "common/cuda/cuda_kernels.h"

namespace psring {
namespace {

// f(a null pointer to the C++ type of `type`).
template <typename F>
gpu::ReduceKernel WithPointerTo(DType type, const F& f) {
  if (type == DType::kFloat32) return f(static_cast<float*>(nullptr));
  if (type == DType::kBFloat16) return f(static_cast<gpu::BFloat16*>(nullptr));
  return f(static_cast<gpu::Float16*>(nullptr));
}

gpu::ReduceKernel ReduceOf(ReduceOp op, DType type, void* to, const gpu::Terms& terms) {
  return WithPointerTo(type, [&]<typename T>(T*) -> gpu::ReduceKernel {
    if (op == ReduceOp::kMin) return gpu::Reduce<gpu::Min, T>{static_cast<T*>(to), terms};
    if (op == ReduceOp::kMax) return gpu::Reduce<gpu::Max, T>{static_cast<T*>(to), terms};
    return gpu::Reduce<gpu::Sum, T>{static_cast<T*>(to), terms};
  });
}

gpu::ReduceKernel ScaleOf(DType type, void* data, float factor) {
  return WithPointerTo(type, [&]<typename T>(T*) -> gpu::ReduceKernel {
    return gpu::Scale<T>{static_cast<T*>(data), factor};
  });
}

}  // namespace

absl::Status EnqueueReduce(ReduceOp op, DType type, size_t count, void* to, const void* const* sources,
                           int source_count, cudaStream_t stream) {
  PSRING_CHECK(source_count >= 1 && source_count <= gpu::kMaxTerms);
  if (source_count == 1) {  // a copy engine leaves the processors free
    return CudaStatus("cudaMemcpyAsync",
                      cudaMemcpyAsync(to, sources[0], count * SizeOf(type), cudaMemcpyDefault, stream));
  }
  gpu::Terms terms = {};
  std::copy_n(sources, source_count, terms.at);
  terms.count = source_count;
  return CudaStatus("launch of an addition", gpu::Launch(count, ReduceOf(op, type, to, terms), stream));
}

absl::Status EnqueueScale(DType type, size_t count, void* data, float factor, cudaStream_t stream) {
  return CudaStatus("launch of a scaling", gpu::Launch(count, ScaleOf(type, data, factor), stream));
}

}  // namespace psring
