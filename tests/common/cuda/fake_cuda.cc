// Devices, kernels, memory and streams. fake_cuda_graphs.cc has events and graphs.
#include "tests/common/cuda/fake_cuda.h"

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/cuda/cuda_kernels.h"
#include "common/cuda_ops/cuda_launcher.h"
#include "tests/common/cuda/fake_cuda_memory.h"
#include "tests/common/cuda/fake_cuda_streams.h"
#include "tests/common/cuda/gpu_in_loops.h"

namespace psring {

FakeCuda& TheFakeCuda() {
  static FakeCuda fake;
  return fake;
}

namespace gpu {

cudaError_t Launch(size_t count, const Kernel& kernel, cudaStream_t stream) {
  if (TheFakeCuda().launches_fail) return cudaErrorInvalidConfiguration;
  if (!fake::IsSelected(stream)) return cudaErrorInvalidResourceHandle;
  const bool fails = TheFakeCuda().kernels_fail;
  fake::Do(stream, [=] {
    if (fails) fake::failed = true;
    if (!fake::failed) LaunchInLoop(count, kernel);
  });
  return cudaSuccess;
}

cudaError_t Launch(size_t count, const ReduceKernel& kernel, cudaStream_t stream) {
  if (TheFakeCuda().launches_fail) return cudaErrorInvalidConfiguration;
  if (!fake::IsSelected(stream)) return cudaErrorInvalidResourceHandle;
  fake::Do(stream, [=] { LaunchInLoop(count, kernel); });
  return cudaSuccess;
}

cudaError_t CheckImage() { return TheFakeCuda().kernels_fit ? cudaSuccess : cudaErrorNoKernelImageForDevice; }

}  // namespace gpu

void OnFakeGpu(cudaStream_t stream, std::function<void()> work) { fake::Do(stream, std::move(work)); }

}  // namespace psring

namespace fake = psring::fake;
using psring::TheFakeCuda;

extern "C" {

// GPU work of another fake: runs once, or at each launch of the graph. `drop` is called at the end.
void psringFakeGpuDo(cudaStream_t stream, void (*work)(void*), void* argument, void (*drop)(void*)) {
  fake::Do(stream, [work, kept = std::shared_ptr<void>(argument, drop)] { work(kept.get()); });
}
bool psringFakeGpuCaptures(cudaStream_t stream) { return fake::Of(stream)->capture != nullptr; }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    default:
      return error == cudaSuccess ? "no error" : "an error of the fake";
  }
}
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorOfTheFake"; }
cudaError_t cudaGetLastError() {
  const cudaError_t error = fake::last_error;
  fake::last_error = cudaSuccess;
  return error;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (TheFakeCuda().driver_version < 13000) return fake::Return(cudaErrorInsufficientDriver);
  if (TheFakeCuda().devices == 0) return fake::Return(cudaErrorNoDevice);
  return fake::Give(count, TheFakeCuda().devices);
}
cudaError_t cudaDriverGetVersion(int* version) { return fake::Give(version, TheFakeCuda().driver_version); }
cudaError_t cudaRuntimeGetVersion(int* version) { return fake::Give(version, 13000); }
cudaError_t cudaSetDevice(int index) {
  if (index >= TheFakeCuda().devices) return fake::Return(cudaErrorInvalidDevice);
  return fake::Give(&fake::selected, index);
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  return fake::Give(can, TheFakeCuda().peers_reach ? 1 : 0);
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  return peer != fake::selected ? cudaSuccess : fake::Return(cudaErrorInvalidDevice);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  *attributes = {};
  if (!fake::TheArena().Holds(address)) return cudaSuccess;  // cudaMemoryTypeUnregistered
  attributes->type = cudaMemoryTypeDevice;
  attributes->device = fake::TheArena().Holding(address).device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const int architecture = TheFakeCuda().architecture;
  const bool major = attribute == cudaDevAttrComputeCapabilityMajor;
  return fake::Give(value, major ? architecture / 10 : architecture % 10);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  *properties = {};
  properties->uuid.bytes[0] = static_cast<char>(index);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (fake::Forbidden()) return fake::Return(cudaErrorStreamCaptureUnsupported);
  ++TheFakeCuda().allocations;
  *memory = fake::TheArena().Allocate(bytes);
  return *memory != nullptr ? cudaSuccess : fake::Return(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* memory) {
  if (fake::Forbidden()) return fake::Return(cudaErrorStreamCaptureUnsupported);
  if (memory != nullptr) {
    if (fake::TheArena().IsOpen(memory)) ++TheFakeCuda().freed_while_open;
    fake::TheArena().Free(memory);
  }
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = TheFakeCuda().memory;
  return fake::Give(free, *total - TheFakeCuda().used);
}
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  if (fake::Forbidden()) return fake::Return(cudaErrorStreamCaptureUnsupported);
  ++TheFakeCuda().allocations;
  std::lock_guard lock(fake::pinned_mutex);
  fake::Pinned()[static_cast<const char*>(memory)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
  std::lock_guard lock(fake::pinned_mutex);
  fake::Pinned().erase(static_cast<const char*>(memory));
  return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  if (!fake::TheArena().Owns(memory)) return fake::Return(cudaErrorInvalidValue);
  std::memset(handle->reserved, 0, sizeof(handle->reserved));
  const fake::MemoryHandle described = {static_cast<char*>(memory), fake::TheArena().Holding(memory).bytes};
  std::memcpy(handle->reserved, &described, sizeof(described));
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned) {
  fake::MemoryHandle owners = {};
  std::memcpy(&owners, handle.reserved, sizeof(owners));
  if (!TheFakeCuda().handles_open || !fake::TheArena().Owns(owners.memory)) {
    return fake::Return(cudaErrorInvalidResourceHandle);
  }
  const size_t off = TheFakeCuda().opens_wrong_memory ? fake::kPage : 0;
  fake::TheArena().ReachTo(owners.memory + owners.bytes + off);
  fake::TheArena().NoteOpened(owners.memory, +1);
  *memory = static_cast<char*>(fake::TheArena().Opened(owners.memory)) + off;
  ++TheFakeCuda().opened;
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void* memory) {
  if (TheFakeCuda().closes_slowly) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const size_t off = TheFakeCuda().opens_wrong_memory ? fake::kPage : 0;
  fake::TheArena().NoteOpened(fake::TheArena().OwnersOf(static_cast<char*>(memory) - off), -1);
  --TheFakeCuda().opened;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return fake::Give(stream, reinterpret_cast<cudaStream_t>(new fake::FakeStream{fake::selected}));
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete fake::Of(stream);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  if (fake::Forbidden()) return fake::Return(cudaErrorStreamCaptureUnsupported);
  fake::Push(*fake::Of(stream), [=] { function(argument); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  fake::Do(stream, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}
// Pageable host memory is read immediately, and written before the call returns.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  const auto is_plain = [](const void* address) {
    return !fake::TheArena().Holds(address) && !fake::IsPinned(address);
  };
  if ((is_plain(from) || is_plain(to)) && fake::Forbidden()) {
    return fake::Return(cudaErrorStreamCaptureUnsupported);
  }
  if (is_plain(from)) {
    const auto* const first = static_cast<const char*>(from);
    fake::Do(stream,
             [=, copy = std::vector<char>(first, first + bytes)] { std::memcpy(to, copy.data(), bytes); });
  } else {
    fake::Do(stream, [=] { std::memcpy(to, from, bytes); });
  }
  if (is_plain(to)) fake::Drain(stream);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (fake::Forbidden()) return fake::Return(cudaErrorStreamCaptureUnsupported);
  fake::TheArena().Open();
  std::memcpy(to, from, bytes);
  fake::TheArena().Close();
  return cudaSuccess;
}

}  // extern "C"
