// The barrier before each timed call, and memory that all ranks of a benchmark share.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/deadline.h"
#include "common/base/file_descriptor.h"
#include "common/base/shared_memory.h"
#include "common/device/device.h"
#include "common/rendezvous/rendezvous.h"

namespace psring {

// Every rank's buffer of shared memory, mapped into this process.
class SharedBuffers {
 public:
  // Collective, with the same `name` and a buffer of Device::AllocateShared, which must outlive all ranks'
  // mappings. FailedPrecondition if the ranks are not on one host.
  static absl::StatusOr<SharedBuffers> Map(Rendezvous& rendezvous, const std::string& name,
                                           const Buffer& mine);

  std::byte* of(int rank) const { return maps_[static_cast<size_t>(rank)].data(); }

 private:
  // Has the size of `mine`; unmapped with its owner.
  std::vector<SharedMemory> maps_;
};

// True if all ranks run under one kernel and can access each other's processes.
absl::StatusOr<bool> OnOneHost(Rendezvous& rendezvous);

// A barrier in shared memory for ranks of one host: one slot per rank, which only that rank writes. A waiting
// rank spins if there is a core for each rank, then yields; in a long wait it sleeps. Takes a few tenths of a
// microsecond between two ranks, which is negligible for the timed calls.
class HostBarrier {
 public:
  static absl::StatusOr<std::unique_ptr<HostBarrier>> Make(Rendezvous& rendezvous, Device& device,
                                                           absl::Duration timeout);

  // Returns when every rank has called it as often as this one. Unavailable names a rank that has ended or
  // given up (with its reason), DeadlineExceeded those that are missing.
  absl::Status Wait();

  // This rank will not call Wait again because of `why`, which the other ranks' Wait then returns.
  void GiveUp(const absl::Status& why);

 private:
  struct Slot;

  HostBarrier(int rank, int ranks, absl::Duration timeout) : rank_(rank), ranks_(ranks), timeout_(timeout) {}
  Slot& slot(int rank) const;
  bool Arrived(int rank) const;
  // Called periodically in a long wait: an error if a rank has ended or the deadline has passed.
  absl::Status Look(MonotonicTime deadline) const;

  const int rank_, ranks_;
  const absl::Duration timeout_;
  Buffer mine_;
  SharedBuffers slots_;
  std::vector<FileDescriptor> processes_;  // readable once they have ended; invalid: cannot be watched
  uint64_t epoch_ = 0;
  int spins_ = 0;
};

}  // namespace psring
