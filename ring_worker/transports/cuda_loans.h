// A GPU's memory and moments as other ranks of the host see them: what is handed over, and what is made of
// it.
//
// *region*: memory of cudaMalloc that peers may read. *moment*: an event of CUDA's, recorded in a stream.
// A rank of another process opens their IPC handles; one of the same process takes them as they are, since a
// handle cannot be opened where it was made.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"

namespace psring {

// Both travel as they stand, between processes of one host and build.
struct Moment {
  uint64_t address;  // cudaEvent_t, in its own process
  uint32_t event;    // its number
  uint32_t unused;
  char handle[sizeof(cudaIpcEventHandle_t)];
};
struct Loan {
  uint64_t offset;          // of what is lent, in the region
  uint64_t address, bytes;  // the region's, in its own process
  uint32_t region;          // its number; numbers are used again,
  uint32_t generation;      // and this says for the how many-th time
  char handle[sizeof(cudaIpcMemHandle_t)];
  Moment ready;  // then the values are there
};
static_assert(sizeof(Loan) % sizeof(float) == 0 && sizeof(Moment) % sizeof(float) == 0);

// This rank's regions. One thread at a time.
class LentRegions {
 public:
  // `exported`: some peer is another process.
  LentRegions(Device& device, bool exported) : device_(device), exported_(exported) {}

  // Nothing happens for memory that is not this GPU's.
  absl::Status Add(const Buffer& buffer);
  void Remove(const Buffer& buffer);
  // Describes `bytes` from `data` on but for `ready`; false: they lie in no region.
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

// Events that take turns. A later moment of an event stands for an earlier one too, because all are recorded
// in one order.
class LentEvents {
 public:
  ~LentEvents();
  // On the selected device.
  absl::Status Create(bool exported);
  // Marks the point that `stream` has been told so far.
  absl::StatusOr<Moment> Record(cudaStream_t stream);
  const std::vector<Moment>& all() const { return events_; }
  // They end with the process.
  void Abandon() { events_.clear(); }

 private:
  static constexpr size_t kEvents = 32;
  std::vector<Moment> events_;
  size_t next_ = 0;
};

// What one peer has lent. Opens what it has not seen before; closes everything when it ends.
class BorrowedGpu {
 public:
  BorrowedGpu(Device& device, bool same_process) : device_(device), same_process_(same_process) {}
  ~BorrowedGpu();
  BorrowedGpu(const BorrowedGpu&) = delete;
  BorrowedGpu& operator=(const BorrowedGpu&) = delete;

  absl::StatusOr<const std::byte*> At(const Loan& loan);
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
