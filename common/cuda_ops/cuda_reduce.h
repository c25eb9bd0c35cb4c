// cpu::Reduce and cpu::Scale (reduce.h) for a GPU's memory, in a CUDA stream's order. CMake compiles it where
// CUDA was found.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "absl/status/status.h"
#include "common/reduce/reduce.h"

namespace psring {

// Put on `stream` of the selected device, and not waited for. Sources are memory that this device reads: its
// own, or a peer's; 1 to gpu::kMostTerms of them.
absl::Status EnqueueReduce(ReduceOp op, DType type, size_t count, void* to, const void* const* sources,
                           int source_count, cudaStream_t stream);
absl::Status EnqueueScale(DType type, size_t count, void* data, float factor, cudaStream_t stream);

}  // namespace psring
