#include "common/cuda/cuda_for_each.h"
#include "common/cuda/cuda_reduce_kernels.h"

namespace psring::gpu {
namespace {

// 64 blocks keep 512 KiB of loads on their way for each source: a link of 450 GB/s with a latency of 1 us
// holds less. Reckoned, not measured.
constexpr unsigned kThreads = 512;
constexpr size_t kMaxBlocks = 64;

}  // namespace

cudaError_t Launch(size_t count, const ReduceKernel& kernel, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  std::visit([=](const auto& f) { LaunchWide(count, f, OnStream<kThreads, kMaxBlocks>{stream}); }, kernel);
  return cudaGetLastError();
}

}  // namespace psring::gpu
