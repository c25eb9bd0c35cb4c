// Launches a kernel with one element, or one pack, per thread. For .cu files.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace psring::gpu {

template <unsigned kThreads, typename F>
__global__ void __launch_bounds__(kThreads) ForEach(size_t count, F f) {
  const size_t stride = size_t{gridDim.x} * kThreads;
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) f(i);
}

// With more work than `kMaxBlocks` blocks, each thread processes several elements.
template <unsigned kThreads, size_t kMaxBlocks>
struct OnStream {
  cudaStream_t stream;
  template <typename F>
  void operator()(size_t count, const F& f) const {
    const size_t blocks = (count + kThreads - 1) / kThreads;
    const unsigned grid = static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
    ForEach<kThreads><<<grid, kThreads, 0, stream>>>(count, f);
  }
};

}  // namespace psring::gpu
