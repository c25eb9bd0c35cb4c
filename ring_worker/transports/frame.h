// What stands before every payload, and how a receiver knows that it is the one it waits for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "ring_worker/transports/transport.h"

namespace psring {

// Both sides have the same byte order: the magic number says so.
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

// The ranks' calls differ: says what both are in.
absl::Status FramesDiffer(int peer, const FrameHeader& theirs, int rank, const FrameHeader& ours);

}  // namespace psring
