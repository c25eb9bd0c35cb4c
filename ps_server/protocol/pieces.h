// Payload as it is received, and how it is copied and added without another copy.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>

#include "common/device/device.h"

namespace psring {

inline constexpr size_t kChunkBytes = 1 << 20;

// Bytes of the chunk that starts at `offset` of a bucket with `bucket_bytes`.
inline size_t ChunkLength(size_t bucket_bytes, size_t offset) {
  return std::min(bucket_bytes - offset, kChunkBytes);
}

// Of a bucket.
inline size_t ChunkCount(size_t bucket_bytes) {
  return std::max<size_t>(1, (bucket_bytes + kChunkBytes - 1) / kChunkBytes);
}

// Pieces have any length and alignment, so a float may be split between two.
using Bytes = std::span<const std::byte>;
using Pieces = std::span<const Bytes>;

inline size_t TotalBytes(Pieces pieces) {
  size_t total = 0;
  for (const Bytes& piece : pieces) total += piece.size();
  return total;
}

// `to` has at least TotalBytes(pieces) bytes. A piece that is already in its place is not copied.
void CopyPieces(Pieces pieces, std::byte* to);

enum class Finite { kAny, kRequired };

// to[i] = (Set) or += (Add) the i-th element of the joined pieces, which contain whole elements of `type`.
// kRequired: returns the index of the first element that is NaN or infinite, if there is one; it and later
// elements are not taken, and some of the earlier ones are. The check needs no extra pass over memory: each
// block is checked and then taken while it is in the L1 cache.
std::optional<size_t> SetPieces(DType type, Pieces pieces, float* to, Finite finite = Finite::kAny);
std::optional<size_t> AddPieces(DType type, Pieces pieces, float* to, Finite finite = Finite::kAny);

// The index of the first element of the joined pieces that is NaN or infinite, if there is one.
std::optional<size_t> FirstNotFinite(DType type, Pieces pieces);

}  // namespace psring
