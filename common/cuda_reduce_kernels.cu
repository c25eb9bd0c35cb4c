#include "common/cuda_reduce_kernels.h"

namespace psring::gpu {
namespace {

// 64 blocks keep 512 KiB of loads on their way for each source: a link of 450 GB/s with a latency of 1 us
// holds less. Reckoned, not measured.
constexpr unsigned kThreads = 512;
constexpr size_t kMostBlocks = 64;

template <typename F>
__global__ void __launch_bounds__(kThreads) ForEach(size_t count, F f) {
  const size_t stride = size_t{gridDim.x} * kThreads;
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) f(i);
}

struct OnStream {
  cudaStream_t stream;
  template <typename F>
  void operator()(size_t count, const F& f) const {
    const size_t blocks = (count + kThreads - 1) / kThreads;
    const unsigned grid = static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
    ForEach<<<grid, kThreads, 0, stream>>>(count, f);
  }
};

}  // namespace

cudaError_t Launch(size_t count, const ReduceKernel& kernel, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  std::visit([=](const auto& f) { LaunchInPacks(count, f, OnStream{stream}); }, kernel);
  return cudaGetLastError();
}

}  // namespace psring::gpu
