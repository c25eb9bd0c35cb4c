#include "ring_worker/schedules/default_algorithm.h"

namespace psring {
namespace {

// One-shot moves N-1 times the buffer into every rank, which is faster than a second round up to this sum.
constexpr size_t kOneShotBytes = 32 << 10;

// Over sockets, up to this size the rounds of a ring cost more than the bytes.
constexpr size_t kFewRoundsBytes = 128 << 10;

bool IsPowerOfTwo(int ranks) { return (ranks & (ranks - 1)) == 0; }

const char* AllReduceAlgorithm(size_t bytes, int ranks, bool share_memory) {
  if (bytes * static_cast<size_t>(ranks) <= kOneShotBytes) return "one-shot";
  // In shared memory sums are written to all ranks at once, and no link is busier than another.
  if (share_memory) return "direct";
  return bytes <= kFewRoundsBytes && IsPowerOfTwo(ranks) ? "halving-doubling" : "ring";
}

}  // namespace

const char* DefaultAlgorithm(Collective collective, size_t bytes, int ranks, bool share_memory) {
  switch (collective) {
    case Collective::kAllReduce:
      return AllReduceAlgorithm(bytes, ranks, share_memory);
    case Collective::kReduceScatter:
    case Collective::kAllGather:
      return share_memory ? "direct" : "ring";
    case Collective::kBroadcast:
      return "star";
    case Collective::kAllToAll:
      break;
  }
  return "direct";
}

}  // namespace psring
