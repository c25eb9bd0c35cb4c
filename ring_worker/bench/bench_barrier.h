// Where the ranks of a benchmark stand in line before a call is timed, and memory that all of them see.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/shared_memory.h"
#include "common/device/device.h"
#include "common/rendezvous/rendezvous.h"

namespace psring {

// Every rank's buffer of shared memory, mapped into this process.
class SharedBuffers {
 public:
  // Every rank calls it, with the same `name` and a buffer of Device::AllocateShared, which must outlive all
  // ranks' mappings. FailedPrecondition where the ranks are not on one host.
  static absl::StatusOr<SharedBuffers> Map(Rendezvous& rendezvous, const std::string& name,
                                           const Buffer& mine);

  std::byte* of(int rank) const { return maps_[static_cast<size_t>(rank)].data(); }

 private:
  // The whole file of `mine`'s size; unmapped with its owner.
  std::vector<SharedMemory> maps_;
};

// True where all ranks run under one kernel and see each other's processes.
absl::StatusOr<bool> OnOneHost(Rendezvous& rendezvous);

// Ranks of one host meet in shared memory: a line of memory a rank, which it alone writes. A waiting rank
// spins where there is a core for each rank, then yields; long waits sleep. Costs some tenths of a
// microsecond between two ranks that are there, so it stands between timed calls without being felt in them.
class HostBarrier {
 public:
  static absl::StatusOr<std::unique_ptr<HostBarrier>> Make(Rendezvous& rendezvous, Device& device,
                                                           absl::Duration timeout);
  ~HostBarrier();

  // Returns when every rank has called it as often as this one. Unavailable names a rank that has ended or
  // given up (and why), DeadlineExceeded those that did not come in time.
  absl::Status Wait();

  // This rank will not come again, because of `why`; whoever waits for it learns so.
  void GiveUp(const absl::Status& why);

 private:
  struct Slot;

  HostBarrier(int rank, int ranks, absl::Duration timeout) : rank_(rank), ranks_(ranks), timeout_(timeout) {}
  Slot& slot(int rank) const;
  bool Arrived(int rank) const;
  // Looked at now and then in a long wait: whether it is hopeless.
  absl::Status Look(absl::Time deadline) const;

  const int rank_, ranks_;
  const absl::Duration timeout_;
  Buffer mine_;
  SharedBuffers slots_;
  std::vector<int> pid_fds_;  // readable once the process has ended; -1: cannot be watched
  uint64_t epoch_ = 0;
  int spins_ = 0;
};

}  // namespace psring
