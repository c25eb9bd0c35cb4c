#include "common/cuda/cuda_for_each.h"
#include "common/cuda/cuda_kernels.h"

namespace psring::gpu {
namespace {

constexpr unsigned kThreads = 256;
constexpr size_t kMaxBlocks = 0x7fffffff;

}  // namespace

cudaError_t Launch(size_t count, const Kernel& kernel, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  std::visit([=](const auto& f) { LaunchWide(count, f, OnStream<kThreads, kMaxBlocks>{stream}); }, kernel);
  return cudaGetLastError();
}

cudaError_t CheckImage() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, ForEach<kThreads, Add<float>>);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error;
}

}  // namespace psring::gpu
