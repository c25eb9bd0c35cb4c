// The table of the kinds of context parallelism: how the ranks of a sequence divide it, and what they
// exchange in attention. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace psring {

enum class ContextParallel : uint8_t { kRing, kContiguous, kUlysses };

struct ContextParallelRow {
  ContextParallel kind;
  const char* name;     // the value of --context_parallel
  bool uses_ring;       // keys and values travel; else two all-to-alls divide the heads among the ranks
  int chunks_per_rank;  // of positions
  bool is_balanced;     // all ranks have equally many pairs of a query and an earlier key
  bool is_searched;     // by psring predict --layouts without --context_parallel

  // How many times as long a rank's attention takes as that of a whole sequence of its own positions, because
  // its queries see keys of other ranks, too: for the rank with the most keys, for which all wait.
  constexpr int AttentionOfOwn(int ranks) const { return is_balanced ? ranks : 2 * ranks - 1; }
  // Memory for what attention exchanges, as a multiple of a rank's queries: pieces of the ring, each of keys
  // and values; or these once, with the queries.
  static constexpr int RingPieces(int ranks) { return ranks > 2 ? 5 : 4; }
  constexpr int ExchangedParts(int ranks) const { return uses_ring ? 2 * RingPieces(ranks) : 3; }
};

// In the order of the enumeration. Sources: Liu et al. 2023 (ring); Jacobs et al. 2023 (ulysses).
inline constexpr ContextParallelRow kContextParallelRows[] = {
    {ContextParallel::kRing, "ring", true, 2, true, true},
    {ContextParallel::kContiguous, "contiguous", true, 1, false, false},
    {ContextParallel::kUlysses, "ulysses", false, 1, true, true},
};
inline constexpr const ContextParallelRow& kDefaultContextParallel = kContextParallelRows[0];

constexpr const ContextParallelRow& ContextParallelOf(ContextParallel kind) {
  return kContextParallelRows[static_cast<size_t>(kind)];
}

// `name`: one that the flag accepts; another one gives the default.
constexpr const ContextParallelRow& ContextParallelOf(absl::string_view name) {
  for (const ContextParallelRow& row : kContextParallelRows) {
    if (name == row.name) return row;
  }
  return kDefaultContextParallel;
}

inline std::vector<std::string> ContextParallelNames() {
  std::vector<std::string> names;
  for (const ContextParallelRow& row : kContextParallelRows) names.emplace_back(row.name);
  return names;
}

}  // namespace psring
