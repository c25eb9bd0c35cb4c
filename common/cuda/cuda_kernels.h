// The kernels of gpu_kernels.h on a GPU. Without abseil, to keep nvcc fast.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "common/cuda/gpu_kernels.h"

namespace psring::gpu {

// Calls `kernel` for 0 ... count - 1, in any order, on the selected device.
cudaError_t Launch(size_t count, const Kernel& kernel, cudaStream_t stream);

// Whether the selected device can run this build's kernels.
cudaError_t CheckImage();

}  // namespace psring::gpu
