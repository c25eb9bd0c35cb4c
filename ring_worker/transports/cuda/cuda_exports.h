// A GPU's memory and events, as accessed by other ranks of the host.
//
// *region*: memory from cudaMalloc that peers may read. *event*: a CUDA event recorded in a stream. A rank
// of another process opens their IPC handles; one of the same process uses the addresses, since a handle
// cannot be opened in its own process.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"

namespace psring {

// Both are sent as bytes between processes of one host and build.
struct RemoteEvent {
  uint64_t address;  // cudaEvent_t, in the process that created it
  uint32_t number;   // of the exporter's events
  uint32_t unused;
  char handle[sizeof(cudaIpcEventHandle_t)];
};
struct RemoteMemory {
  uint64_t offset;          // of the memory in the region
  uint64_t address, bytes;  // of the region, in the exporter's process
  uint32_t region;          // its number; numbers are reused,
  uint32_t generation;      // and this counts the uses
  char handle[sizeof(cudaIpcMemHandle_t)];
  RemoteEvent ready;  // when the values are complete
};
static_assert(sizeof(RemoteMemory) % sizeof(float) == 0 && sizeof(RemoteEvent) % sizeof(float) == 0);

// This rank's regions. One thread at a time.
class ExportedRegions {
 public:
  // `exported`: some peer is another process.
  ExportedRegions(Device& device, bool exported) : device_(device), exported_(exported) {}

  // No effect for memory that is not this GPU's.
  absl::Status Add(const Buffer& buffer);
  void Remove(const Buffer& buffer);
  // Describes `bytes` from `data`, except for `ready`; false: they are in no region.
  bool Describe(const void* data, size_t bytes, RemoteMemory& memory) const;

 private:
  struct Region {
    const std::byte* data = nullptr;  // null: the number is free
    size_t bytes = 0;
    uint32_t generation = 0;
    char handle[sizeof(cudaIpcMemHandle_t)] = {};
  };

  Device& device_;
  const bool exported_;
  std::vector<Region> regions_;
};

// Events that are reused cyclically. When a later record of an event is complete, so is the earlier one,
// because all are recorded in one order.
class ExportedEvents {
 public:
  ~ExportedEvents();
  // On the selected device.
  absl::Status Create(bool exported);
  // Marks the current end of `stream`.
  absl::StatusOr<RemoteEvent> Record(cudaStream_t stream);
  const std::vector<RemoteEvent>& all() const { return events_; }
  // Leaks the events: peers may still use them.
  void Abandon() { events_.clear(); }

  static constexpr size_t kEvents = 32;

 private:
  std::vector<RemoteEvent> events_;
  size_t next_ = 0;
};

// One peer's regions and events. Opens new ones; closes all in its destructor.
class PeerGpu {
 public:
  PeerGpu(Device& device, bool same_process) : device_(device), same_process_(same_process) {}
  ~PeerGpu();
  PeerGpu(const PeerGpu&) = delete;
  PeerGpu& operator=(const PeerGpu&) = delete;

  // The exported memory, of at least `bytes`. DataLoss: an impossible number or offset. The size of a region
  // is the exporter's claim: CUDA's runtime does not give it.
  absl::StatusOr<const std::byte*> At(const RemoteMemory& memory, size_t bytes);
  absl::StatusOr<cudaEvent_t> EventOf(const RemoteEvent& event);

 private:
  struct Region {
    uint32_t generation = 0;
    Buffer memory;
  };

  Device& device_;
  const bool same_process_;
  std::vector<Region> regions_;      // by number
  std::vector<cudaEvent_t> events_;  // by number
};

}  // namespace psring
