#include "common/cuda/cuda_kernels.h"

namespace psring::gpu {
namespace {

constexpr unsigned kThreads = 256;
constexpr size_t kMaxBlocks = 0x7fffffff;

// 64 blocks keep 512 KiB of loads in flight for each source; a link of 450 GB/s with a latency of 1 us holds
// less. Derived, not measured.
constexpr unsigned kReduceThreads = 512;
constexpr size_t kMaxReduceBlocks = 64;

// One element, or one pack, per thread; several if there are more than the blocks hold.
template <unsigned threads, typename F>
__global__ void __launch_bounds__(threads) ForEach(size_t count, F f) {
  const size_t stride = size_t{gridDim.x} * threads;
  for (size_t i = size_t{blockIdx.x} * threads + threadIdx.x; i < count; i += stride) f(i);
}

template <unsigned threads, size_t max_blocks>
struct OnStream {
  cudaStream_t stream;
  template <typename F>
  void operator()(size_t count, const F& f) const {
    const size_t blocks = (count + threads - 1) / threads;
    const unsigned grid = static_cast<unsigned>(blocks < max_blocks ? blocks : max_blocks);
    ForEach<threads><<<grid, threads, 0, stream>>>(count, f);
  }
};

template <unsigned threads, size_t max_blocks, typename AnyKernel>
cudaError_t LaunchAny(size_t count, const AnyKernel& kernel, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  std::visit([=](const auto& f) { LaunchWide(count, f, OnStream<threads, max_blocks>{stream}); }, kernel);
  return cudaGetLastError();
}

}  // namespace

cudaError_t Launch(size_t count, const Kernel& kernel, cudaStream_t stream) {
  return LaunchAny<kThreads, kMaxBlocks>(count, kernel, stream);
}

cudaError_t Launch(size_t count, const ReduceKernel& kernel, cudaStream_t stream) {
  return LaunchAny<kReduceThreads, kMaxReduceBlocks>(count, kernel, stream);
}

cudaError_t CheckImage() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, ForEach<kThreads, Update<AddTo>>);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error;
}

}  // namespace psring::gpu
