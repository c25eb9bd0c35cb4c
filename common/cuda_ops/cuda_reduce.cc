#include "common/cuda_ops/cuda_reduce.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/cuda/cuda_context.h"
#include "common/cuda/cuda_reduce_kernels.h"

namespace psring {
namespace {

template <typename Op>
gpu::ReduceKernel ReduceOf(DType type, void* to, const gpu::Terms& terms) {
  switch (type) {
    case DType::kFloat32:
      return gpu::Reduce<Op, float>{static_cast<float*>(to), terms};
    case DType::kBFloat16:
      return gpu::Reduce<Op, gpu::BFloat16>{static_cast<gpu::BFloat16*>(to), terms};
    case DType::kFloat16:
      break;
  }
  return gpu::Reduce<Op, gpu::Float16>{static_cast<gpu::Float16*>(to), terms};
}

gpu::ReduceKernel ReduceOf(ReduceOp op, DType type, void* to, const gpu::Terms& terms) {
  switch (op) {
    case ReduceOp::kMin:
      return ReduceOf<gpu::Min>(type, to, terms);
    case ReduceOp::kMax:
      return ReduceOf<gpu::Max>(type, to, terms);
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      break;
  }
  return ReduceOf<gpu::Sum>(type, to, terms);
}

gpu::ReduceKernel ScaleOf(DType type, void* data, float factor) {
  switch (type) {
    case DType::kFloat32:
      return gpu::Scale<float>{static_cast<float*>(data), factor};
    case DType::kBFloat16:
      return gpu::Scale<gpu::BFloat16>{static_cast<gpu::BFloat16*>(data), factor};
    case DType::kFloat16:
      break;
  }
  return gpu::Scale<gpu::Float16>{static_cast<gpu::Float16*>(data), factor};
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
