// A CUDA runtime without a GPU. Linked into a test, fake_cuda.cc replaces cudart and the kernels, and
// fake_cublas_lt.cc and fake_cudnn.cc replace the libraries, so that device, streams, ops and training run as
// on a GPU, on any machine.
//
// It is as strict as a GPU. Streams are threads, so work runs later than it is enqueued. The process dies if
// the host accesses device memory. Pinned memory is read when a copy runs, not when it is enqueued. Kernels
// and events belong to the selected device. A capture fails if its thread makes a call that a capture
// forbids, or if a stream that took part is not joined. Work that a graph does not order runs in one order at
// one launch and in another at the next.
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
  // From the next kernel on: it fails when it runs, like an illegal address.
  std::atomic<bool> kernels_fail = false;
  // From the next kernel on: it cannot be launched.
  std::atomic<bool> launches_fail = false;
  // Instantiated captures, and launches of their graphs.
  std::atomic<int> graphs = 0, graph_launches = 0;
  // Set before memory is first used: a handle opens memory at another address, also in a forked process.
  // Slower, because there are no huge pages.
  std::atomic<bool> opens_elsewhere = false;
  // The offset of this process's part of device memory, in bytes. Forked processes use separate parts.
  std::atomic<size_t> memory_from = 0;
  // Device memory in use, in bytes and buffers; the numbers of allocations and of pinned ones.
  std::atomic<size_t> used = 0;
  std::atomic<int> buffers = 0;
  std::atomic<int64_t> allocations = 0;
  // Whether handles of memory and events can be opened, and the number of open ones. The process that made
  // them can open them, too.
  std::atomic<bool> handles_open = true;
  std::atomic<int> opened = 0;
  // From now on an opened handle shows other memory than the owner's, as behind an IOMMU.
  std::atomic<bool> opens_wrong_memory = false;
  // Closing a handle takes a while, in which others may wrongly free its memory.
  std::atomic<bool> closes_slowly = false;
  // Buffers that were freed while handles of theirs were open in this process.
  std::atomic<int> freed_while_open = 0;
  std::atomic<bool> peers_reach = true;  // a device may access another's memory
  // By device: the work enqueued and finished so far. While it is paused nothing runs, until a host thread
  // waits, that is, polls one event repeatedly.
  struct Pace {
    std::atomic<bool> paused = false;
    std::atomic<int64_t> enqueued = 0, finished = 0, enqueued_at_wait = 0;
  };
  std::array<Pace, 8> pace;
};
FakeCuda& TheFakeCuda();

// Enqueues GPU work on `stream`; it runs later, in order, with access to device memory.
void OnFakeGpu(cudaStream_t stream, std::function<void()> work);

}  // namespace psring
