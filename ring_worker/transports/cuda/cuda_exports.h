// A GPU's memory and events, as accessed by other ranks of the host.
//
// *region*: memory from cudaMalloc that peers may read. *moment*: a CUDA event recorded in a stream. A rank
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
struct Moment {
  uint64_t address;  // cudaEvent_t, in the process that created it
  uint32_t event;    // its number
  uint32_t unused;
  char handle[sizeof(cudaIpcEventHandle_t)];
};
struct Loan {
  uint64_t offset;          // of the memory in the region
  uint64_t address, bytes;  // of the region, in the lender's process
  uint32_t region;          // its number; numbers are reused,
  uint32_t generation;      // and this counts the uses
  char handle[sizeof(cudaIpcMemHandle_t)];
  Moment ready;  // when the values are complete
};
static_assert(sizeof(Loan) % sizeof(float) == 0 && sizeof(Moment) % sizeof(float) == 0);

// This rank's regions. One thread at a time.
class LentRegions {
 public:
  // `exported`: some peer is another process.
  LentRegions(Device& device, bool exported) : device_(device), exported_(exported) {}

  // No effect for memory that is not this GPU's.
  absl::Status Add(const Buffer& buffer);
  void Remove(const Buffer& buffer);
  // Describes `bytes` from `data`, except for `ready`; false: they are in no region.
  bool Describe(const void* data, size_t bytes, Loan& loan) const;

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

// Events that are reused cyclically. When a later moment of an event has come, so has the earlier one,
// because all are recorded in one order.
class LentEvents {
 public:
  ~LentEvents();
  // On the selected device.
  absl::Status Create(bool exported);
  // Marks the current end of `stream`.
  absl::StatusOr<Moment> Record(cudaStream_t stream);
  const std::vector<Moment>& all() const { return events_; }
  // Leaks the events: peers may still use them.
  void Abandon() { events_.clear(); }

  static constexpr size_t kEvents = 32;

 private:
  std::vector<Moment> events_;
  size_t next_ = 0;
};

// One peer's regions and events. Opens new ones; closes all in its destructor.
class BorrowedGpu {
 public:
  BorrowedGpu(Device& device, bool same_process) : device_(device), same_process_(same_process) {}
  ~BorrowedGpu();
  BorrowedGpu(const BorrowedGpu&) = delete;
  BorrowedGpu& operator=(const BorrowedGpu&) = delete;

  // The lent memory, of at least `bytes`. DataLoss: an impossible number or offset. The size of a region is
  // the lender's word: CUDA's runtime does not give it.
  absl::StatusOr<const std::byte*> At(const Loan& loan, size_t bytes);
  absl::StatusOr<cudaEvent_t> EventOf(const Moment& moment);

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
