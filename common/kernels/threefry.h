// Threefry4x32-20 (Salmon, Moraes, Dror & Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"): random
// numbers that are a function of a key and a counter, so that each can be computed at any time, and again. Of
// that paper's generators it is the one that compilers vectorize best: it only adds, rotates and XORs.
#pragma once

#include <cstdint>

namespace psring {

struct Words4 {
  uint32_t w0, w1, w2, w3;
};

struct ThreefryKey {
  constexpr explicit ThreefryKey(const Words4& key)
      : words{key.w0, key.w1, key.w2, key.w3, 0x1bd11bda ^ key.w0 ^ key.w1 ^ key.w2 ^ key.w3} {}
  uint32_t words[5];
};

// Rounds kRound ... 19. Without loops and always inlined, so that a loop over counters is vectorized.
template <int kRound>
[[gnu::always_inline]] constexpr Words4 ThreefryRounds(Words4 x, const ThreefryKey& key) {
  constexpr int kRotations[8][2] = {{10, 26}, {11, 21}, {13, 27}, {23, 5},
                                    {6, 20},  {17, 11}, {25, 10}, {18, 20}};
  constexpr int kFirst = kRotations[kRound % 8][0], kSecond = kRotations[kRound % 8][1];
  // Even rounds mix words 0 and 1, 2 and 3; odd ones 0 and 3, 2 and 1.
  uint32_t& first = kRound % 2 == 0 ? x.w1 : x.w3;
  uint32_t& second = kRound % 2 == 0 ? x.w3 : x.w1;
  x.w0 += first;
  first = (first << kFirst | first >> (32 - kFirst)) ^ x.w0;
  x.w2 += second;
  second = (second << kSecond | second >> (32 - kSecond)) ^ x.w2;
  if constexpr (kRound % 4 == 3) {
    constexpr uint32_t kInjection = kRound / 4 + 1;
    x.w0 += key.words[kInjection % 5];
    x.w1 += key.words[(kInjection + 1) % 5];
    x.w2 += key.words[(kInjection + 2) % 5];
    x.w3 += key.words[(kInjection + 3) % 5] + kInjection;
  }
  if constexpr (kRound == 19) {
    return x;
  } else {
    return ThreefryRounds<kRound + 1>(x, key);
  }
}

// 128 random bits.
[[gnu::always_inline]] constexpr Words4 Threefry(const Words4& counter, const ThreefryKey& key) {
  return ThreefryRounds<0>({counter.w0 + key.words[0], counter.w1 + key.words[1], counter.w2 + key.words[2],
                            counter.w3 + key.words[3]},
                           key);
}

}  // namespace psring
