// The header of every payload, by which the receiver checks that it is the expected one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "ring_worker/transports/transport.h"

namespace psring {

// Both sides must have the same byte order, which the magic number verifies.
struct FrameHeader {
  uint32_t magic = 0x52535032;
  uint32_t round = 0, segment = 0;
  uint32_t reserved = 0;
  uint64_t bytes = 0;  // of the payload
  CallInfo call;
  bool operator==(const FrameHeader&) const = default;
};
static_assert(sizeof(FrameHeader) == 80);

// "call 3, ring all_reduce (sum) of 1000 float32 (round 0, segment 12, 256 bytes)"
std::string ToString(const FrameHeader& header);

// The error for ranks whose calls differ; names both calls.
absl::Status FramesDiffer(int peer, const FrameHeader& theirs, int rank, const FrameHeader& ours);

}  // namespace psring
