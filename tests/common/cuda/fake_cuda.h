// A CUDA runtime without a GPU: linked into a test, fake_cuda.cc takes the place of cudart and the kernels,
// fake_cublas_lt.cc and fake_cudnn.cc those of the libraries, so that our device, streams, ops and training
// run as they would on a GPU, on any machine.
//
// It is as unforgiving as a GPU: streams are threads, so work is done later than it is enqueued; device
// memory cannot be touched by the host (the process dies) but while the fake itself works in it; pinned
// memory is read when a copy's turn comes, not when it is enqueued; kernels and events are for streams of the
// device that the thread has selected; a capture ends with an error where its thread did in between what a
// capture does not allow, or what has no place in one of ours, or where a stream that took part was not
// waited for in the end; what a graph's edges leave open comes in one order at one launch, in another at the
// next.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace psring {

struct FakeCuda {
  std::atomic<int> devices = 1;
  std::atomic<int> driver_version = 13000;  // 0: no driver; below the runtime's: too old
  std::atomic<size_t> memory = size_t{1} << 30;
  std::atomic<bool> kernels_fit = true;
  std::atomic<int> architecture = 80;  // compute capability, times 10
  std::atomic<bool> has_cudnn = true;
  std::atomic<int> kernel_without_cudnn = 0;  // convolutions of this size are nothing for cuDNN
  // From the next kernel on: it fails when its turn comes, as an illegal address does.
  std::atomic<bool> kernels_fail = false;
  // From the next kernel on: it cannot be launched.
  std::atomic<bool> launches_fail = false;
  // Captures that were instantiated, and launches of what came of them.
  std::atomic<int> graphs = 0, graph_launches = 0;
  // Set before memory is first used: what a handle opens stands at another address, also in a forked process.
  // Slower, because it has no huge pages.
  std::atomic<bool> opens_elsewhere = false;
  // Where this process's part of device memory begins, in bytes: forked processes, which share memory and
  // events through handles as others do, take parts of their own.
  std::atomic<size_t> memory_from = 0;
  // Device memory in use, in bytes, and buffers; and how often such memory was asked for, or memory pinned.
  std::atomic<size_t> used = 0;
  std::atomic<int> buffers = 0;
  std::atomic<int64_t> allocations = 0;
  // Whether handles of memory and events open; and how many are open. They open in the process that made
  // them too, which may play both sides.
  std::atomic<bool> handles_open = true;
  std::atomic<int> opened = 0;
  std::atomic<bool> peers_reach = true;  // a device may access another's memory
  // By device: what was put on its streams so far. While it stands still nothing of that is done, until a
  // host waits for it: who looks at one event again and again.
  struct Pace {
    std::atomic<bool> stands_still = false;
    std::atomic<int64_t> enqueued = 0, enqueued_at_wait = 0;
  };
  std::array<Pace, 8> pace;
};
FakeCuda& TheFakeCuda();

// Puts work of the GPU on `stream`: later, in order, with its memory open.
void OnFakeGpu(cudaStream_t stream, std::function<void()> work);

}  // namespace psring
