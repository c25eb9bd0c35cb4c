#include "ps_server/protocol/pieces.h"

#include <cstring>

#include "common/base/check.h"
#include "common/kernels/reduce.h"
#include "common/ops/cpu_kernels.h"

namespace psring {
namespace {

// `from` need not be aligned: each float is loaded by memcpy, which compiles to unaligned vector loads.
void AddUnaligned(const std::byte* from, size_t count, float* to) {
  for (size_t i = 0; i < count; ++i) {
    float value;
    std::memcpy(&value, from + i * sizeof(float), sizeof(float));
    to[i] += value;
  }
}

constexpr uint32_t kExponent = 0x7f800000;  // all ones: NaN or infinity

// Carries into the highest bit where the exponent is all ones. Without a branch, so that it is vectorised.
bool AllFinite(const std::byte* from, size_t count) {
  uint32_t carry = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, from + i * sizeof(bits), sizeof(bits));
    carry |= (bits & kExponent) + (1u << 23);
  }
  return (carry >> 31) == 0;
}

std::optional<size_t> FirstNotFinite(const std::byte* from, size_t count) {
  if (AllFinite(from, count)) return std::nullopt;
  size_t i = 0;
  while (AllFinite(from + i * sizeof(float), 1)) ++i;
  return i;
}

// The floats of `pieces` in order, a run at a time: `take(from, count)`, where `from` need not be aligned.
template <typename Take>
void ForEachRun(Pieces pieces, const Take& take) {
  std::byte carry[sizeof(float)];  // the first bytes of a float whose rest is in a later piece
  size_t carried = 0;
  for (Bytes piece : pieces) {
    while (carried > 0 && carried < sizeof(float) && !piece.empty()) {
      carry[carried++] = piece.front();
      piece = piece.subspan(1);
    }
    if (carried == sizeof(float)) {
      take(carry, size_t{1});
      carried = 0;
    }
    const size_t whole = piece.size() / sizeof(float);
    take(piece.data(), whole);
    for (const std::byte byte : piece.subspan(whole * sizeof(float))) carry[carried++] = byte;
  }
  PSRING_CHECK(carried == 0);
}

// 16-bit elements may be split between pieces and unaligned: they are gathered in blocks that fit into the L1
// cache, and `take(values, count)` gets them as floats.
template <typename Take>
void Decode(DType type, Pieces pieces, const Take& take) {
  constexpr size_t kBlock = 4096;
  uint16_t raw[kBlock];
  float values[kBlock];
  size_t filled = 0;  // bytes
  const auto flush = [&] {
    PSRING_CHECK(filled % sizeof(uint16_t) == 0);
    const size_t count = filled / sizeof(uint16_t);
    cpu::Convert(type, raw, DType::kFloat32, values, count);
    take(values, count);
    filled = 0;
  };
  for (Bytes piece : pieces) {
    while (!piece.empty()) {
      const size_t taken = std::min(piece.size(), sizeof(raw) - filled);
      std::memcpy(reinterpret_cast<std::byte*>(raw) + filled, piece.data(), taken);
      filled += taken;
      piece = piece.subspan(taken);
      if (filled == sizeof(raw)) flush();
    }
  }
  if (filled > 0) flush();
}

// The elements of `pieces` as floats, a run at a time: `take(from, count)`.
template <typename Take>
void ForEachFloats(DType type, Pieces pieces, const Take& take) {
  if (type == DType::kFloat32) return ForEachRun(pieces, take);
  Decode(type, pieces,
         [&](const float* values, size_t count) { take(reinterpret_cast<const std::byte*>(values), count); });
}

// Floats per block that is checked before it is taken. Added: together with the sum, half of an L1 cache.
// Copied: fits into an L2 cache; memcpy of that length does not read its destination.
constexpr size_t kAddedBlock = 2048;
constexpr size_t kCopiedBlock = 16384;

// `take(from, count, index)` for block after block of the pieces as floats; `index`: of its first element.
// Returns the first element that is not finite, if that is required; nothing is taken from there on.
template <size_t kBlock, typename Take>
std::optional<size_t> TakePieces(DType type, Pieces pieces, Finite finite, const Take& take) {
  size_t done = 0;
  std::optional<size_t> found;
  const auto take_run = [&](const std::byte* from, size_t count) {
    for (size_t i = 0; i < count && !found.has_value(); i += kBlock) {
      const size_t length = std::min(kBlock, count - i);
      const std::byte* block = from + i * sizeof(float);
      if (finite == Finite::kRequired) {
        if (const std::optional<size_t> at = FirstNotFinite(block, length)) {
          found = done + *at;
          return;
        }
      }
      take(block, length, done);
      done += length;
    }
  };
  ForEachFloats(type, pieces, take_run);
  return found;
}

}  // namespace

std::optional<size_t> FirstNotFinite(DType type, Pieces pieces) {
  return TakePieces<kCopiedBlock>(type, pieces, Finite::kRequired, [](const std::byte*, size_t, size_t) {});
}

std::optional<size_t> SetPieces(DType type, Pieces pieces, float* to, Finite finite) {
  if (type == DType::kFloat32 && finite == Finite::kAny) {
    CopyPieces(pieces, reinterpret_cast<std::byte*>(to));
    return std::nullopt;
  }
  return TakePieces<kCopiedBlock>(type, pieces, finite, [to](const std::byte* from, size_t count, size_t at) {
    std::memcpy(to + at, from, count * sizeof(float));
  });
}

std::optional<size_t> AddPieces(DType type, Pieces pieces, float* to, Finite finite) {
  return TakePieces<kAddedBlock>(type, pieces, finite, [to](const std::byte* from, size_t count, size_t at) {
    if (reinterpret_cast<uintptr_t>(from) % alignof(float) == 0) {
      cpu::Add(count, to + at, reinterpret_cast<const float*>(from));
    } else {
      AddUnaligned(from, count, to + at);
    }
  });
}

void CopyPieces(Pieces pieces, std::byte* to) {
  for (const Bytes& piece : pieces) {
    if (piece.empty()) continue;
    if (piece.data() != to) std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
}

}  // namespace psring
