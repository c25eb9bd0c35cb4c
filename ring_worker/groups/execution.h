// Runs a lowered schedule over a transport, on the calling thread.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "ring_worker/groups/process_group.h"
#include "ring_worker/schedules/lowered_schedule.h"
#include "ring_worker/transports/device_work.h"
#include "ring_worker/transports/fifo.h"
#include "ring_worker/transports/transport.h"

namespace psring {

// The memory of one call: all chunks together have `count` elements.
struct CallMemory {
  Collective collective = Collective::kAllReduce;
  size_t count = 0;
  DType type = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int rank = 0, size = 1;
  const std::byte* in = nullptr;  // all-gather: only this rank's chunk; all-to-all: blocks by rank
  std::byte* out = nullptr;       // reduce-scatter: only this rank's chunk; all-to-all: blocks by rank
  std::byte* scratch = nullptr;   // reduce-scatter: memory for all chunks
};

struct Pace {
  size_t segment_bytes = 0;
  int depth = 1;
  absl::Duration timeout;
};

class Execution {
 public:
  Execution(Transport& transport, DeviceWork& device) : transport_(transport), device_(device) {}

  // See ProcessGroup. A round begins with this rank's first segment and ends with its last.
  void NoteRounds(std::vector<RoundTime>* rounds) { rounds_ = rounds; }

  // Runs one call on the calling thread. Errors are the transport's.
  absl::Status Run(const LoweredSchedule& lowered, bool whole, uint32_t call, const CallMemory& memory,
                   const Pace& pace);

 private:
  struct InFlight {
    int round;
    uint32_t slab;
  };

  const std::byte* Read(int chunk, bool fresh) const;
  std::byte* Write(int chunk) const;
  size_t FirstOf(int chunk) const;
  size_t BlockAt(int step) const;
  ChunkRange Piece(int first_chunk, int chunk_count, uint32_t slab) const;

  void CopyBytes(std::byte* to, const std::byte* from, size_t bytes) const;
  void CopyWhole() const;
  void Start(int round, uint32_t slab);
  absl::Status FinishOldest();
  void SlabDone(uint32_t slab) const;
  void NoteEnd(int round);

  Transport& transport_;
  DeviceWork& device_;
  // Of the current call:
  const LoweredSchedule* lowered_ = nullptr;
  bool whole_ = false;
  uint32_t call_ = 0;
  uint32_t slabs_ = 1;
  CallMemory memory_;
  Pace pace_;
  Fifo<InFlight> in_flight_;
  std::vector<RoundTime>* rounds_ = nullptr;  // null: not recorded
  size_t next_end_ = 0;                       // the first of the call's rounds that has not ended
};

}  // namespace psring
