#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace psring {

// 64-bit hash of bytes, as 16 hexadecimal digits: equal weights, equal hash. Not cryptographic.
std::string HashBytes(const void* data, size_t bytes);

// The same of bytes that arrive in pieces.
class Hasher {
 public:
  Hasher();
  void Add(const void* data, size_t bytes);
  std::string Hex() const;

 private:
  // Eight lanes, so that eight multiplications are in flight; each word changes its lane by a bijection, so a
  // single changed word always changes the hash of its lane.
  static constexpr size_t kLanes = 8;
  static constexpr size_t kBlock = kLanes * sizeof(uint64_t);
  static void Mix(const unsigned char* block, uint64_t* lanes);

  uint64_t lanes_[kLanes];
  unsigned char begun_[kBlock] = {};  // the first `bytes_ % kBlock` bytes of the next block
  uint64_t bytes_ = 0;
};

}  // namespace psring
