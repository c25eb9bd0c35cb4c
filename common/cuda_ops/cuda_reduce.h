// cpu::Reduce and cpu::Scale (reduce.h) for GPU memory, in the order of a CUDA stream. Compiled only with
// CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "absl/status/status.h"
#include "common/kernels/reduce.h"

namespace psring {

// Enqueued on `stream` of the selected device. Sources are memory that this device can read, its own or a
// peer's; 1 to gpu::kMaxTerms of them.
absl::Status EnqueueReduce(ReduceOp op, DType type, size_t count, void* to, const void* const* sources,
                           int source_count, cudaStream_t stream);
absl::Status EnqueueScale(DType type, size_t count, void* data, float factor, cudaStream_t stream);

}  // namespace psring
