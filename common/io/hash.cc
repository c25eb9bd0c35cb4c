#include "common/io/hash.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_format.h"

namespace psring {

std::string HashBytes(const void* data, size_t bytes) {
  // Eight lanes, so that eight multiplications are in flight; each word changes its lane by a bijection, so a
  // single changed word always changes the hash of its lane.
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
  constexpr size_t kLanes = 8;
  constexpr size_t kBlock = kLanes * sizeof(uint64_t);
  uint64_t lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = (i + 1) * 0xd1b54a32d192ed03;

  const auto mix_block = [&lanes](const unsigned char* block) {
    uint64_t words[kLanes];
    std::memcpy(words, block, kBlock);
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = std::rotl((lanes[i] ^ words[i]) * kOdd, 31);
  };
  const auto* at = static_cast<const unsigned char*>(data);
  size_t left = bytes;
  for (; left >= kBlock; left -= kBlock, at += kBlock) mix_block(at);
  if (left > 0) {
    unsigned char last[kBlock] = {};
    std::memcpy(last, at, left);
    mix_block(last);
  }

  uint64_t hash = bytes * kOdd;
  for (const uint64_t lane : lanes) {  // the finalizer of MurmurHash3, once per lane
    hash ^= lane;
    hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccd;
    hash = (hash ^ (hash >> 33)) * 0xc4ceb9fe1a85ec53;
    hash ^= hash >> 33;
  }
  return absl::StrFormat("%016x", hash);
}

}  // namespace psring
