#include "common/kernels/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

#ifdef __x86_64__
#include <emmintrin.h>
#endif

namespace psring::cpu {

#ifdef __x86_64__
void CopyPastCaches(void* to, const void* from, size_t bytes) {
  constexpr size_t kLine = 64;  // a part of a line would be merged with the old contents in memory
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  const size_t head = std::min(bytes, (kLine - reinterpret_cast<uintptr_t>(out) % kLine) % kLine);
  std::memcpy(out, in, head);
  out += head, in += head, bytes -= head;
  for (; bytes >= kLine; out += kLine, in += kLine, bytes -= kLine) {
    __m128i words[kLine / sizeof(__m128i)];
    std::memcpy(words, in, kLine);
    for (size_t i = 0; i < std::size(words); ++i) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(out) + i, words[i]);
    }
  }
  std::memcpy(out, in, bytes);
  _mm_sfence();  // orders these stores before later ones
}
#else
void CopyPastCaches(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
#endif

}  // namespace psring::cpu
