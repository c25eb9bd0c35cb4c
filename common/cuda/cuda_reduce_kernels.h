// The kernels of gpu_reduce.h on a GPU. Without abseil, to keep nvcc fast.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "common/cuda/gpu_reduce.h"

namespace psring::gpu {

// For elements 0 ... count - 1, on the selected device. Uses few of the GPU's processors, since it mostly
// waits for a link while other kernels compute.
cudaError_t Launch(size_t count, const ReduceKernel& kernel, cudaStream_t stream);

}  // namespace psring::gpu
