#include "common/io/hash.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"

namespace psring {
namespace {

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;

}  // namespace

Hasher::Hasher() {
  for (size_t i = 0; i < kLanes; ++i) lanes_[i] = (i + 1) * 0xd1b54a32d192ed03;
}

void Hasher::Mix(const unsigned char* block, uint64_t* lanes) {
  uint64_t words[kLanes];
  std::memcpy(words, block, kBlock);
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = std::rotl((lanes[i] ^ words[i]) * kOdd, 31);
}

void Hasher::Add(const void* data, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  const size_t begun = bytes_ % kBlock;
  bytes_ += bytes;
  if (begun > 0) {
    const size_t taken = std::min(bytes, kBlock - begun);
    if (taken > 0) std::memcpy(begun_ + begun, at, taken);
    at += taken;
    bytes -= taken;
    if (begun + taken < kBlock) return;
    Mix(begun_, lanes_);
  }
  for (; bytes >= kBlock; bytes -= kBlock, at += kBlock) Mix(at, lanes_);
  if (bytes > 0) std::memcpy(begun_, at, bytes);
}

std::string Hasher::Hex() const {
  uint64_t lanes[kLanes];
  std::copy_n(lanes_, kLanes, lanes);
  if (const size_t begun = bytes_ % kBlock; begun > 0) {
    unsigned char last[kBlock] = {};
    std::memcpy(last, begun_, begun);
    Mix(last, lanes);
  }
  uint64_t hash = bytes_ * kOdd;
  for (const uint64_t lane : lanes) {  // the finalizer of MurmurHash3, once per lane
    hash ^= lane;
    hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccd;
    hash = (hash ^ (hash >> 33)) * 0xc4ceb9fe1a85ec53;
    hash ^= hash >> 33;
  }
  return absl::StrFormat("%016x", hash);
}

std::string HashBytes(const void* data, size_t bytes) {
  Hasher hasher;
  hasher.Add(data, bytes);
  return hasher.Hex();
}

}  // namespace psring
