#include "ring_worker/transports/cuda/cuda_exports.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/escaping.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cuda/cuda_context.h"
#include "common/cuda/cuda_device.h"

namespace psring {
namespace {

constexpr uint32_t kMaxRegions = 1 << 16;

// An event of this process.
cudaEvent_t EventAt(uint64_t address) {
  return reinterpret_cast<cudaEvent_t>(address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

absl::Status ExportedRegions::Add(const Buffer& buffer) {
  cudaPointerAttributes where = {};
  const cudaError_t known = cudaPointerGetAttributes(&where, buffer.data());
  if (known != cudaSuccess) (void)cudaGetLastError();  // memory unknown to CUDA
  if (known != cudaSuccess || where.type != cudaMemoryTypeDevice || where.device != device_.gpu() ||
      buffer.bytes() == 0) {
    return absl::OkStatus();
  }
  Region region{.data = static_cast<const std::byte*>(buffer.data()), .bytes = buffer.bytes()};
  if (exported_) {
    PSRING_ASSIGN_OR_RETURN(const std::string text, ExportMemory(device_, buffer));
    std::string handle;
    PSRING_CHECK(absl::WebSafeBase64Unescape(text, &handle) && handle.size() == sizeof(region.handle));
    std::memcpy(region.handle, handle.data(), sizeof(region.handle));
  }
  auto free =
      std::find_if(regions_.begin(), regions_.end(), [](const Region& r) { return r.data == nullptr; });
  if (free == regions_.end()) free = regions_.insert(regions_.end(), Region());
  region.generation = free->generation + 1;
  *free = region;
  return absl::OkStatus();
}

void ExportedRegions::Remove(const Buffer& buffer) {
  for (Region& region : regions_) {
    if (region.data == buffer.data()) region.data = nullptr;
  }
}

bool ExportedRegions::Describe(const void* data, size_t bytes, RemoteMemory& memory) const {
  const auto* const first = static_cast<const std::byte*>(data);
  for (size_t number = 0; number < regions_.size(); ++number) {
    const Region& region = regions_[number];
    if (region.data == nullptr || first < region.data || first + bytes > region.data + region.bytes) continue;
    memory.offset = static_cast<uint64_t>(first - region.data);
    memory.address = reinterpret_cast<uint64_t>(region.data);
    memory.bytes = region.bytes;
    memory.region = static_cast<uint32_t>(number);
    memory.generation = region.generation;
    std::memcpy(memory.handle, region.handle, sizeof(memory.handle));
    return true;
  }
  return false;
}

ExportedEvents::~ExportedEvents() {
  for (const RemoteEvent& event : events_) {
    (void)CudaStatus("cudaEventDestroy", cudaEventDestroy(EventAt(event.address)));
  }
}

absl::Status ExportedEvents::Create(bool exported) {
  const unsigned flags = cudaEventDisableTiming | (exported ? cudaEventInterprocess : 0);
  for (size_t i = 0; i < kEvents; ++i) {
    cudaEvent_t event = nullptr;
    PSRING_RETURN_IF_ERROR(CudaStatus("cudaEventCreate", cudaEventCreateWithFlags(&event, flags)));
    RemoteEvent& made = events_.emplace_back();
    made.address = reinterpret_cast<uint64_t>(event);
    made.number = static_cast<uint32_t>(i);
    if (!exported) continue;
    cudaIpcEventHandle_t handle = {};
    PSRING_RETURN_IF_ERROR(CudaStatus("cudaIpcGetEventHandle", cudaIpcGetEventHandle(&handle, event)));
    std::memcpy(made.handle, handle.reserved, sizeof(made.handle));
  }
  return absl::OkStatus();
}

absl::StatusOr<RemoteEvent> ExportedEvents::Record(cudaStream_t stream) {
  const RemoteEvent& event = events_[next_++ % kEvents];
  PSRING_RETURN_IF_ERROR(CudaStatus("cudaEventRecord", cudaEventRecord(EventAt(event.address), stream)));
  return event;
}

PeerGpu::~PeerGpu() {
  for (const cudaEvent_t event : events_) {
    if (event != nullptr) (void)CudaStatus("cudaEventDestroy", cudaEventDestroy(event));
  }
}

absl::StatusOr<const std::byte*> PeerGpu::At(const RemoteMemory& memory, size_t bytes) {
  if (memory.offset > memory.bytes || bytes > memory.bytes - memory.offset || memory.region >= kMaxRegions) {
    return DataLoss("it exported ", bytes, " bytes at ", memory.offset, " of region ", memory.region,
                    ", which has ", memory.bytes);
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of this process
  if (same_process_) return reinterpret_cast<const std::byte*>(memory.address) + memory.offset;
  if (regions_.size() <= memory.region) regions_.resize(memory.region + 1);
  Region& region = regions_[memory.region];
  if (region.generation != memory.generation) {
    region.memory = Buffer();  // the owner has freed the memory that had this number before
    PSRING_ASSIGN_OR_RETURN(
        region.memory,
        ImportMemory(device_, absl::WebSafeBase64Escape({memory.handle, sizeof(memory.handle)}),
                     memory.bytes));
    region.generation = memory.generation;
  }
  return static_cast<const std::byte*>(region.memory.data()) + memory.offset;
}

absl::StatusOr<cudaEvent_t> PeerGpu::EventOf(const RemoteEvent& event) {
  if (same_process_) return EventAt(event.address);
  if (event.number >= ExportedEvents::kEvents) {
    return DataLoss("it named event ", event.number, " of ", ExportedEvents::kEvents);
  }
  if (events_.size() <= event.number) events_.resize(event.number + 1, nullptr);
  cudaEvent_t& opened = events_[event.number];
  if (opened == nullptr) {
    cudaIpcEventHandle_t handle = {};
    std::memcpy(handle.reserved, event.handle, sizeof(handle.reserved));
    PSRING_RETURN_IF_ERROR(CudaStatus("cudaIpcOpenEventHandle", cudaIpcOpenEventHandle(&opened, handle)));
  }
  return opened;
}

}  // namespace psring
