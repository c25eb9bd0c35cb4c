#include "common/cuda_ops/cuda_reduce.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/cuda/cuda_context.h"
#include "common/cuda/cuda_kernels.h"

namespace psring {
namespace {

gpu::ReduceKernel ReduceOf(ReduceOp op, DType type, void* to, const gpu::Terms& terms) {
  return WithType(type, [&]<typename T>(T) {
    return WithOp(op, [&]<typename Op>(Op) -> gpu::ReduceKernel {
      return gpu::Reduce<Op, T>{static_cast<T*>(to), terms};
    });
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
  const gpu::ReduceKernel scale = WithType(type, [&]<typename T>(T) -> gpu::ReduceKernel {
    return gpu::Scale<T>{static_cast<T*>(data), factor};
  });
  return CudaStatus("launch of a scaling", gpu::Launch(count, scale, stream));
}

}  // namespace psring
