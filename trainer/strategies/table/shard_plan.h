// How ZeRO (Rajbhandari et al. 2020) cuts buckets among ranks, and in which memory a rank has its parts and
// the buckets that are complete at present. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "common/base/parameters.h"

namespace psring {

// Elements of the flat buffers that this rank updates, and their place among all that it updates.
struct ShardPart {
  Bucket range;
  size_t at = 0;
};

// A bucket's shards are equal parts, rank r's the r-th. The rest, fewer elements than ranks, is on every
// rank.
struct ShardedBucket {
  Bucket bucket, whole;  // `whole`: the equal parts of all ranks
  ShardPart parts[2];    // this rank's part of `whole`, and the rest
  const ShardPart& own() const { return parts[0]; }
  const ShardPart& rest() const { return parts[1]; }
};

// By bucket.
std::vector<ShardedBucket> ShardBuckets(const std::vector<Bucket>& buckets, int rank, int ranks);

// The memory of a flat buffer of which a rank has only its parts of all buckets, one after the other, and
// after them blocks, in which buckets are complete while they are in use.
struct BlockMemory {
  size_t parts = 0;     // elements of this rank's parts
  size_t elements = 0;  // of the memory; 0: it has the flat buffer
  // By bucket: where its block begins, and whether no other bucket uses this block.
  std::vector<size_t> blocks = {};
  std::vector<bool> keeps = {};
};

// `keeps`: by bucket, whether it has a block of its own. The others, in their order, use `turns` blocks in
// turn: each always the same one, so that blocks differ in size if units alternate between large and small.
BlockMemory PlanBlocks(const std::vector<ShardedBucket>& buckets, const std::vector<bool>& keeps, int turns);

// Of ZeRO stage 2, and with weights.elements > 0 of stage 3 (FSDP).
struct ShardPlan {
  BlockMemory gradient, weights;
  // Of a pipeline. By bucket: whether its gradient is kept whole, in a block of its own, for the sum of the
  // micro-batches, and reduced once in a step; empty: none is. And the last elements of the gradient's
  // memory, which are in no block.
  std::vector<bool> whole = {};
  size_t aside = 0;
  bool shards_gradient() const { return gradient.elements > 0; }
  bool shards_weights() const { return weights.elements > 0; }
  // Of a step with so many micro-batches.
  int ReductionsOf(size_t bucket, int micro_batches) const {
    return !whole.empty() && whole[bucket] ? 1 : micro_batches;
  }
};

}  // namespace psring
