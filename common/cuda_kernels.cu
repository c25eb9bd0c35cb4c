#include "common/cuda_kernels.h"

namespace psring::gpu {
namespace {

constexpr unsigned kThreads = 256;
constexpr size_t kMostBlocks = 0x7fffffff;

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

cudaError_t Launch(size_t count, const Kernel& kernel, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  std::visit([=](const auto& f) { LaunchWide(count, f, OnStream{stream}); }, kernel);
  return cudaGetLastError();
}

cudaError_t CheckImage() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, ForEach<Add<float>>);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error;
}

}  // namespace psring::gpu
