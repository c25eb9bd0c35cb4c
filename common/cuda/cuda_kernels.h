// The kernels of gpu_kernels.h and gpu_reduce.h on the selected device. Without abseil, to keep nvcc fast.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "common/cuda/gpu_kernels.h"
#include "common/cuda/gpu_reduce.h"

namespace psring::gpu {

// Calls `kernel` for 0 ... count - 1, in any order.
cudaError_t Launch(size_t count, const Kernel& kernel, cudaStream_t stream);

// The same on a few of the GPU's multiprocessors: a reduction mostly waits for a link, and other kernels
// compute at the same time.
cudaError_t Launch(size_t count, const ReduceKernel& kernel, cudaStream_t stream);

// Whether the selected device can run this build's kernels.
cudaError_t CheckImage();

}  // namespace psring::gpu
