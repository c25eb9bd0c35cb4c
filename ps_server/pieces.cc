#include "ps_server/pieces.h"

#include <cstring>

#include "common/check.h"
#include "common/cpu_kernels.h"

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

bool IsFinite(const std::byte* from) { return AllFinite(from, 1); }

}  // namespace

std::optional<size_t> FirstNotFinite(Pieces pieces) {
  size_t index = 0;
  std::byte carry[sizeof(float)];
  size_t carried = 0;
  for (Bytes piece : pieces) {
    while (carried > 0 && carried < sizeof(float) && !piece.empty()) {
      carry[carried++] = piece.front();
      piece = piece.subspan(1);
    }
    if (carried == sizeof(float)) {
      if (!IsFinite(carry)) return index;
      ++index;
      carried = 0;
    }
    const size_t whole = piece.size() / sizeof(float);
    if (!AllFinite(piece.data(), whole)) {
      size_t i = 0;
      while (IsFinite(piece.data() + i * sizeof(float))) ++i;
      return index + i;
    }
    index += whole;
    for (const std::byte byte : piece.subspan(whole * sizeof(float))) carry[carried++] = byte;
  }
  return std::nullopt;
}

void CopyPieces(Pieces pieces, std::byte* to) {
  for (const Bytes& piece : pieces) {
    if (piece.empty()) continue;
    if (piece.data() != to) std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
}

void AddPieces(Pieces pieces, float* to) {
  std::byte carry[sizeof(float)];  // the first bytes of a float whose rest is in a later piece
  size_t carried = 0;
  for (Bytes piece : pieces) {
    while (carried > 0 && carried < sizeof(float) && !piece.empty()) {
      carry[carried++] = piece.front();
      piece = piece.subspan(1);
    }
    if (carried == sizeof(float)) {
      AddUnaligned(carry, 1, to++);
      carried = 0;
    }
    const size_t whole = piece.size() / sizeof(float);
    if (reinterpret_cast<uintptr_t>(piece.data()) % alignof(float) == 0) {
      cpu::Add(whole, to, reinterpret_cast<const float*>(piece.data()));
    } else {
      AddUnaligned(piece.data(), whole, to);
    }
    to += whole;
    for (const std::byte byte : piece.subspan(whole * sizeof(float))) carry[carried++] = byte;
  }
  PSRING_CHECK(carried == 0);
}

}  // namespace psring
